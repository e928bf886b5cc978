/*
 * Encodes texts for comparisons: usage: encode DIR <TEXTS. Each text is its length (4 bytes,
 * little- endian) and its bytes; each answer the number of tokens and the tokens, 4 bytes each, as
 * for a prompt (--plain: without what a prompt gets besides, and special tokens as text).
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/err.h"
#include "server/text/tokenizer.h"

int main(int argc, char **argv)
{
    struct tokenizer *t = NULL;
    struct ek_fault fault = {.msg = ""};
    struct token_vec v = {0};
    uint32_t len;
    char *text = NULL;
    bool plain = argc > 2 && strcmp(argv[2], "--plain") == 0;
    int r = 1;

    if (argc < 2 || tokenizer_load(argv[1], &t, &fault) < 0) {
        (void)fprintf(stderr, "encode: %s\n", argc < 2 ? "DIR is missing" : fault.msg);
        return 1;
    }
    while (fread(&len, sizeof(len), 1, stdin) == 1) {
        char *more = realloc(text, (size_t)len + 1);
        if (!more)
            goto out;
        text = more;
        if (fread(text, 1, len, stdin) != len)
            goto out;
        v.count = 0;
        int code = plain ? tokenizer_encode(t, text, len, false, 0, &v)
                         : tokenizer_encode_prompt(t, text, len, &v);
        if (code < 0)
            goto out;
        uint32_t count = (uint32_t)v.count;
        if (fwrite(&count, sizeof(count), 1, stdout) != 1 ||
            fwrite(v.at, sizeof(*v.at), count, stdout) != count)
            goto out;
    }
    r = 0;
out:
    free(text);
    token_vec_done(&v);
    tokenizer_free(t);
    return r;
}
