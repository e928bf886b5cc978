/* `evenkeelctl diagnose --live` and evenkeeld read one page alike: the doctor, which is not told
 * whose page it is, has the figures of the engine's sample, on a real vLLM's page and on older
 * spellings. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "supervisor/doctor/live.h"
#include "supervisor/engines/dialect.h"
#include "supervisor/engines/sample.h"

static void same(const struct sample *s, enum signal_id i, double live)
{
    if (sample_has(s, i) ? s->value[i] != live : live >= 0)
        fail_msg("%s: %g and %g", signal_name(i), s->value[i], live);
}

static void compare(const char *dialect, const char *text, size_t len)
{
    struct sample s;
    struct live_page p;
    sample_parse(dialect_find(dialect), text, len, 1, &s);
    live_read(text, len, &p);
    assert_true(s.good);
    same(&s, SIG_RUNNING, p.running);
    same(&s, SIG_WAITING, p.waiting);
    same(&s, SIG_KV_USAGE, p.usage);
    same(&s, SIG_PREEMPTIONS, p.preemptions);
    same(&s, SIG_PROMPT_TOKENS, p.prompt_tokens);
    same(&s, SIG_GEN_TOKENS, p.output_tokens);
    same(&s, SIG_PREFIX_QUERIES, p.queries);
    same(&s, SIG_PREFIX_HITS, p.hits);
}

static void test_pages(void **state)
{
    (void)state;
    static char text[1 << 20];
    static const char old[] =
        "vllm:num_requests_running 3\nvllm:num_requests_waiting 4\nvllm:gpu_cache_usage_perc 0.5\n"
        "vllm:num_preemptions 7\nvllm:prompt_tokens 100\nvllm:generation_tokens 200\n"
        "vllm:gpu_prefix_cache_queries 50\nvllm:gpu_prefix_cache_hits 20\n";
    static const char rewritten[] =
        "vllm_num_requests_running{engine=\"0\"} 3\nvllm_num_requests_running{engine=\"1\"} 5\n"
        "vllm_kv_cache_usage_perc{engine=\"0\"} 0.25\nvllm_kv_cache_usage_perc{engine=\"1\"} 0.75\n"
        "vllm_prompt_tokens_total 10\n";
    FILE *f = fopen("tests/fixtures/metrics/vllm-0.32.txt", "r");
    assert_non_null(f);
    size_t len = fread(text, 1, sizeof(text), f);
    (void)fclose(f);
    compare("vllm", text, len);
    compare("evenkeel", text, len);
    compare("vllm", old, sizeof(old) - 1);
    compare("vllm", rewritten, sizeof(rewritten) - 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_pages)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
