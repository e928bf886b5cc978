/* Lines of the kernel's log about GPUs, and a process's memory. */
#include "supervisor/io/figures.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "supervisor/io/child.h"

static void test_xid(void **state)
{
    (void)state;
    static const struct {
        const char *line;
        unsigned xid;
        const char *device;
    } cases[] = {
        {"4,1,2,-;NVRM: Xid (PCI:0000:3b:00): 79, pid=12, GPU has fallen off the bus.", 79,
         "PCI:0000:3b:00"},
        {"NVRM: Xid (PCI:0000:01:00): 13, Graphics SM Warp Exception", 13, "PCI:0000:01:00"},
        {"NVRM: Xid (PCI:0000:01:00)", 0, ""},
        {"NVRM: Xid (): 13", 0, ""},
        {"NVRM: Xid (PCI:0000:01:00): x", 0, ""},
        {"NVRM: Xid (PCI:0000:01:00): 123456", 0, ""},
        {"NVRM: Xid (0123456789012345678901234567890): 7", 0, ""},
        {"NVRM: GPU at PCI:0000:01:00", 0, ""},
        {"", 0, ""},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct xid x = {0};
        assert_int_equal(figures_parse_xid(cases[i].line, &x), cases[i].xid != 0);
        assert_int_equal(x.number, cases[i].xid);
        assert_string_equal(x.device, cases[i].device);
    }
    assert_true(figures_is_final(79));
    assert_false(figures_is_final(13));
}

static void test_memory(void **state)
{
    (void)state;
    const struct process_tree none = {0};
    struct memory_figures f;
    struct child c;
    child_init(&c);
    figures_read(&c, &none, &f);
    assert_true(isnan(f.resident) && isnan(f.cgroup) && isnan(f.most) && isnan(f.stalled_s));
    c.pid = getpid();
    figures_read(&c, &(struct process_tree){.root = c.pid}, &f);
    assert_true(f.resident > 100000 && f.resident < 1e10);
    assert_true(isnan(f.cgroup)); /* our own is no server's */
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_xid), cmocka_unit_test(test_memory)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
