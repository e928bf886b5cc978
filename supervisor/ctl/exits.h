/* Exit codes of evenkeelctl. */
#pragma once

enum ctl_exit { CTL_OK = 0, CTL_REFUSED = 1, CTL_USAGE = 2, CTL_UNREACHED = 3, CTL_LATE = 4 };
