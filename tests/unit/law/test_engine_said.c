/* A vLLM's own word on its limits, in the lines that it writes at a start; anything else is none.
 */
#include "supervisor/law/engine_said.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "supervisor/law/remedy.h"

static void test_lines(void **state)
{
    (void)state;
    static const struct {
        const char *log;
        uint32_t tokens, seqs;
    } cases[] = {
        {"", 0, 0},
        {"\n\n", 0, 0},
        {"(APIServer pid=1) INFO 11-20 10:00:00 [utils.py:253] non-default args: {'model': '/m', "
         "'max_num_batched_tokens': 4096, 'max_num_seqs': 64}\n",
         4096, 64},
        {"INFO 11-20 10:00:00 [scheduler.py:216] Chunked prefill is enabled with "
         "max_num_batched_tokens=8192.\n",
         8192, 0},
        {"non-default args: {'max_num_seqs': 1024}\r\n"
         "Chunked prefill is enabled with max_num_batched_tokens=2048.",
         2048, 1024},
        {"DEBUG [arg_utils.py:9] Defaulting max_num_batched_tokens to 16384 for LLM_CLASS usage "
         "context.\nDEBUG Defaulting max_num_seqs to 256 for OPENAI_API_SERVER usage context.\n",
         16384, 256},
        /* it says the number that it may run when that was too many */
        {"RuntimeError: CUDA out of memory occurred when warming up sampler with 1024 dummy "
         "requests. Please try lowering `max_num_seqs` or `gpu_memory_utilization`\n",
         0, 1024},
        {"INFO warming up sampler with 1024 dummy requests\n", 0, 0},
        /* one start after the other: the last one */
        {"Chunked prefill is enabled with max_num_batched_tokens=8192.\n"
         "Chunked prefill is enabled with max_num_batched_tokens=512.\n",
         512, 0},
        /* a prompt in the log, other lines, and what is no number */
        {"INFO Received request: prompt: 'max_num_batched_tokens=7'\n", 0, 0},
        {"ValueError: max_num_batched_tokens=9 is smaller than max_model_len\n", 0, 0},
        {"Chunked prefill is enabled with max_num_batched_tokens=\n", 0, 0},
        {"Chunked prefill is enabled with max_num_batched_tokens=12x\n", 0, 0},
        {"Chunked prefill is enabled with max_num_batched_tokens=1.5\n", 0, 0},
        {"Chunked prefill is enabled with max_num_batched_tokens=-4\n", 0, 0},
        {"Chunked prefill is enabled with max_num_batched_tokens=99999999999999999999\n", 0, 0},
        {"non-default args: {'max_num_seqs': None}", 0, 0},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        size_t len = strlen(cases[i].log);
        char *exact = malloc(len ? len : 1); /* nothing behind it: what reads on is seen */
        struct remedy_settings said;
        assert_non_null(exact);
        memcpy(exact, cases[i].log, len);
        engine_said(exact, len, &said);
        free(exact);
        if (said.tokens != cases[i].tokens || said.seqs != cases[i].seqs)
            fail_msg("%s: %u %u", cases[i].log, said.tokens, said.seqs);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_lines)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
