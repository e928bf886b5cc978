/*
 * Priorities of the loop's event sources. A source that is pending goes before all of a higher
 * number, and those of one number take turns, the one first that has waited longest.
 */
#pragma once

/* What strangers at a port can keep pending for ever: the page and its API, connections that a
 * server out of service turns away, the agent-check. All others have 0, sd-event's own. */
#define PRIORITY_STRANGERS 10
