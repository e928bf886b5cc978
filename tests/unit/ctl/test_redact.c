/* What a support bundle must not carry, and what must stay. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "common/buf.h"
#include "supervisor/ctl/redact.h"

static const char *const cases[][2] = {
    {"api-key: abc\n", "api-key: [redacted]\n"},
    {"api-key: \"a b\" # mine\n", "api-key: [redacted] # mine\n"},
    {"api-key: [a, b]\n", "api-key: [redacted]\n"},
    {"{\"api_key\": \"abc\", \"x\": 1}", "{\"api_key\": \"[redacted]\", \"x\": 1}"},
    {"HF_TOKEN=hf_abcdefghij more", "HF_TOKEN=[redacted] more"},
    {"vllm serve --api-key s3cret --port 8000", "vllm serve --api-key [redacted] --port 8000"},
    {"--api-key=s3cret --port", "--api-key=[redacted] --port"},
    {"Authorization: Bearer abc.def", "Authorization: Bearer [redacted]"},
    {"{\"keys\":[{\"a\":[1],\"b\":\"]\"}],\"x_key\":null}",
     "{\"keys\":\"[redacted]\",\"x_key\":null}"},
    {"got sk-0123456789abcdef here", "got [redacted] here"},
    {"password: 'x y'", "password: [redacted]"},
    {"api-key:\nport: 8000\n", "api-key:\nport: 8000\n"},
    {"api-key:\n  - a\n  - b\nport: 1\n", "api-key:\n  - [redacted]\n  - [redacted]\nport: 1\n"},
    {"- --api-key\n- a\n- --port\n", "- --api-key\n- [redacted]\n- --port\n"},
    {"[serve, --api-key, a, --port, 1]", "[serve, --api-key, [redacted], --port, 1]"},
    {"[\"--api-key\", \"a\"]", "[\"--api-key\", \"[redacted]\"]"},
    {"X-Api-Key: Bearer abc", "X-Api-Key: Bearer [redacted]"},
    {"api-key: # none\n", "api-key: # none\n"},
    {"api-key: |\n  s3cret\n\n  more\nport: 1\n", "api-key: [redacted]\nport: 1\n"},
    {"  env:\n    A_TOKEN: >-\n      s3cret", "  env:\n    A_TOKEN: [redacted]"},
    {"A_KEY=| x\n y", "A_KEY=[redacted] x\n y"},
    {"HTTPS_PROXY: http://me:pw@proxy:3128/x", "HTTPS_PROXY: http://[redacted]@proxy:3128/x"},
    {"http://u:p@ss@host http://me@corp:pw@h", "http://[redacted]@host http://[redacted]@h"},
    {"{\"api_key\":\"a\\\"b\",\"x\":1}", "{\"api_key\":\"[redacted]\",\"x\":1}"},
    {"[--kv, \"{\\\"password\\\": \\\"S\\\", \\\"n\\\": 2}\"]",
     "[--kv, \"{\\\"password\\\": \\\"[redacted]\\\", \\\"n\\\": 2}\"]"},
    {"http://host:80/a@b http://me@host", "http://host:80/a@b http://me@host"},
    {"HEADERS: \"Authorization=Basic bWU6cHc=\"", "HEADERS: \"Authorization=Basic [redacted]\""},
    {"{\"h\": \"Authorization: Bearer abc\"}", "{\"h\": \"Authorization: Bearer [redacted]\"}"},
    {"Basic words stay", "Basic words stay"},
    {"DB_PASS: x, db-pwd=y, GPG_PASSPHRASE z", "DB_PASS: [redacted], db-pwd=[redacted], "
                                               "GPG_PASSPHRASE [redacted]"},
    {"apikey: x", "apikey: [redacted]"},
    {"pass the flag", "pass the flag"},
    {"nvapi-0123456789 ghp_0123456789 eyJhbGciOiJIUzI1NiJ9.x",
     "[redacted] [redacted] [redacted].x"},
    {"api-key-file: /etc/evenkeel/keys\n", "api-key-file: /etc/evenkeel/keys\n"},
    {"require-api-key: true\n", "require-api-key: true\n"},
    {"max_tokens: 12, prompt_tokens 5", "max_tokens: 12, prompt_tokens 5"},
    {"monkey: x", "monkey: x"},
    {"sk-1", "sk-1"},
    {"key: \"never closed", "key: [redacted]"},
    {"", ""},
};

static void redacts(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct ek_buf out = {0};
        redact(cases[i][0], strlen(cases[i][0]), &out);
        assert_string_equal(out.data ? out.data : "", cases[i][1]);
        ek_buf_done(&out);
    }
}

/* Every beginning of every case is read to its end and no further. */
static void reads_no_further(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        for (size_t n = 0; n <= strlen(cases[i][0]); n++) {
            char *exact = test_malloc(n ? n : 1);
            struct ek_buf out = {0};
            memcpy(exact, cases[i][0], n);
            redact(exact, n, &out);
            assert_true(out.len <= n + 40);
            ek_buf_done(&out);
            test_free(exact);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(redacts),
                                       cmocka_unit_test(reads_no_further)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
