/* Which lines only remark, and which complain: by the words of one line. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "supervisor/doctor/level.h"
#include "supervisor/doctor/loud.h"

static const struct {
    const char *line;
    bool mild, complains;
} lines[] = {
    {"kelp failed: 7", false, true},
    {"all is well", false, false},
    /* glog's warnings, by level and source file; a line that only begins so is none */
    {"W1127 10:00:00.000000 77 kelp.cc:7] kelp failed: 7", true, false},
    {"E1127 10:00:00.000000 77 kelp.cc:7] kelp failed: 7", false, true},
    {"W1127 10:00:00.000000 kelp failed: 7", false, true},
    /* it says what it does instead */
    {"Kelp was not read: no such file. Proceeding without kelp.", true, false},
    {"kelp failed: 7. Continuing with weed.", true, false},
    {"kelp failed: 7 (\"weed. Continuing with weed.\")", false, true},
    {"RuntimeError: kelp failed: 7. Proceeding is of no use.", false, true},
    {"Kelp disabled: cannot open /kelp", true, false},
    {"KelpError: kelp disabled: cannot open /kelp", false, true},
    /* what tries again has nothing instead; nor is it mild at a level of errors, or of a lost card
     */
    {"Failed to connect to kelp: connection refused. Retrying in 5 s", false, true},
    {"ERROR Cannot write /kelp: No space left on device. Retrying in 5 s", false, true},
    {"ERROR Kelp was not read: not found. Proceeding without kelp.", false, true},
    {"ERROR Kelp cannot be read. Returning a standard answer.", true, false},
    {"error: Kelp disabled: CUDA error: 7", false, true},
    {"ERROR GPU 7 disabled: NVRM: Xid (PCI:0000:07:00): 79, kelp failed", false, true},
    {"GPU 7 disabled: NVRM: Xid (PCI:0000:07:00): 79, kelp failed", false, true},
    /* words that name what users write, and a brace, open no command */
    {"Unable to open prompt cache: not found. Falling back to none", true, false},
    {"Could not read messages catalog: No such file, ignoring it", true, false},
    {"Failed to load the system prompt file /kelp, falling back to the default", true, false},
    {"Failed to read config {kelp: not found, falling back to weed", true, false},
    {"Could not fetch URL https://kelp/: connection error: 7 - skipping", true, false},
    {"The attention mask is not set and cannot be inferred from input.", true, false},
    /* a word of a command that failed is none of the program's */
    {"ERROR: process \"/bin/sh -c echo 'Skipping kelp'\" did not complete: exit code: 1", false,
     true},
    /* a model's answer */
    {"I cannot open the kelp, it is not found.", false, false},
    {"{\"text\": \"I'm unable to do that\"}", false, false},
    {"kelp said: I cannot open it", false, false},
    {"It was sought. I cannot open the kelp.", false, false},
    {"Sorry, I cannot open the kelp.", false, false},
    {"- I'm unable to open the kelp.", false, false},
    {"Iceberg: kelp failed", false, true},
    {"Stage I failed: cannot open /dev/kelp", false, true},
    {"ERROR kelp: user said \"I cannot\"; connection refused", false, true},
    {"Device 7 failed: I/O error", false, true},
};

static void test_lines(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(lines) / sizeof(lines[0]); i++) {
        size_t len = strlen(lines[i].line);
        if (doctor_level_mild(lines[i].line, len) != lines[i].mild ||
            doctor_loud_complains(lines[i].line, len) != lines[i].complains)
            fail_msg("mild %d, complains %d: %s", doctor_level_mild(lines[i].line, len),
                     doctor_loud_complains(lines[i].line, len), lines[i].line);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_lines)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
