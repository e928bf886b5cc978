/*
 * Prompts for filling in the middle, by the model's own marks (fim.h). Called at start to find the
 * marks, then by prompt.c.
 */
#include "server/api/fim.h"

#include <errno.h>
#include <string.h>

#include "common/buf.h"
#include "server/api/error.h"
#include "server/api/fields.h"
#include "server/api/readers.h"
#include "server/api/served.h"
#include "server/text/tokenizer.h"

#define FIM_STOPS 5u
#define FIM_SIGN  8u /* most tokens of the sign below */

/* The marks of a family: before the prefix, before the suffix, before the answer. */
struct fim {
    const char *prefix, *suffix, *middle;
    const char *stop[FIM_STOPS]; /* what ends an answer beside the marks, where the model has it */
    bool bare; /* the suffix is encoded without the blank that the tokenizer puts before a text */
    const char *repo, *file; /* before the name of a project, of each of its files; or NULL */
};

/* From the papers and the reference code of Qwen2.5-Coder (CodeGemma writes the same), StarCoder,
 * CodeLlama and DeepSeek-Coder. */
static const struct fim families[] = {
    {"<|fim_prefix|>",
     "<|fim_suffix|>",
     "<|fim_middle|>",
     {"<|endoftext|>", "<|fim_pad|>", "<|repo_name|>", "<|file_sep|>", "<|file_separator|>"},
     false,
     "<|repo_name|>",
     "<|file_sep|>"},
    {"<fim_prefix>",
     "<fim_suffix>",
     "<fim_middle>",
     {"<|endoftext|>", "<fim_pad>", "<file_sep>", "<filename>", NULL},
     false,
     "<repo_name>",
     "<file_sep>"},
    {"\xe2\x96\x81<PRE>",
     "\xe2\x96\x81<SUF>",
     "\xe2\x96\x81<MID>",
     {"\xe2\x96\x81<EOT>"},
     true,
     NULL,
     NULL},
    {"<\xef\xbd\x9c"
     "fim\xe2\x96\x81"
     "begin\xef\xbd\x9c>",
     "<\xef\xbd\x9c"
     "fim\xe2\x96\x81hole\xef\xbd\x9c>",
     "<\xef\xbd\x9c"
     "fim\xe2\x96\x81"
     "end\xef\xbd\x9c>",
     {"<\xef\xbd\x9c"
      "end\xe2\x96\x81of\xe2\x96\x81sentence\xef\xbd\x9c>",
      "<|EOT|>"},
     false,
     NULL,
     NULL},
};

const struct fim *fim_find(const struct tokenizer *tok)
{
    for (size_t i = 0; i < sizeof(families) / sizeof(families[0]); i++) {
        const struct fim *f = &families[i];
        if (tokenizer_find(tok, f->prefix) >= 0 && tokenizer_find(tok, f->suffix) >= 0 &&
            tokenizer_find(tok, f->middle) >= 0)
            return f;
    }
    return NULL;
}

/* The marks end the answer, too: a model that goes on begins the next gap. */
static int add_stops(const struct served *s, const struct fim *f, struct openai_ask *a,
                     struct api_error *err)
{
    const char *const marks[] = {f->prefix, f->suffix, f->middle};
    const uint32_t more = 3 + FIM_STOPS, most = REQ_STOP_IDS - HTTP_EOS_MOST;
    if (a->stop_id_count + more > most)
        return api_refuse(err, 400, "stop_token_ids",
                          "`stop_token_ids` may hold at most %u beside `suffix`.", most - more);
    for (uint32_t i = 0; i < more; i++) {
        const char *name = i < 3 ? marks[i] : f->stop[i - 3];
        int32_t id = name ? tokenizer_find(s->tok, name) : -1;
        if (id >= 0)
            a->stop_ids[a->stop_id_count++] = id;
    }
    return 0;
}

int read_suffix(const struct field_source *from, json_t *v, struct openai_ask *a,
                struct api_error *err)
{
    if (!json_is_string(v))
        return api_refuse(err, 400, "suffix", "`suffix` must be a string.");
    if (json_string_length(v) == 0)
        return 0;
    const struct fim *f = from->served->fim;
    if (!f)
        return api_refuse(err, 400, "suffix",
                          "`suffix` cannot be used: this model has no tokens for filling in the "
                          "middle. Leave it out, or serve a model for code that has them.");
    for (uint32_t i = 0; i < a->prompts; i++) {
        if (!openai_prompt(a, i).text)
            return api_refuse(err, 400, "suffix", "`suffix` needs a `prompt` that is text.");
    }
    a->suffix = v;
    a->fim = f;
    return a->ignore_eos ? 0 : add_stops(from->served, f, a, err);
}

int read_infill_suffix(const struct field_source *from, json_t *v, struct openai_ask *a,
                       struct api_error *err)
{
    if (!v)
        return api_refuse(err, 400, "input_suffix", "`input_suffix` is missing; it may be empty.");
    if (!json_is_string(v))
        return api_refuse(err, 400, "input_suffix", "`input_suffix` must be a string.");
    a->suffix = v;
    a->fim = from->served->fim; /* NULL is told when the prompt is made */
    return a->ignore_eos || !a->fim ? 0 : add_stops(from->served, a->fim, a, err);
}

/* What a client wrote. In a prompt marks are tokens, as in every prompt; what /infill is sent are
 * files, and a mark in them is their text. */
static int add_text(const struct tokenizer *tok, const struct openai_ask *a, const char *text,
                    size_t len, struct token_vec *out)
{
    return len ? tokenizer_encode(tok, text, len, a->api != API_INFILL, 0, out) : 0;
}

static int add_mark(const struct tokenizer *tok, const char *mark, struct token_vec *out)
{
    return tokenizer_encode(tok, mark, strlen(mark), true, 0, out);
}

/* What follows the gap. The reference code of CodeLlama puts a sign before it and takes its tokens
 * away again, so that no blank is added. */
static int add_suffix(const struct served *s, const struct openai_ask *a, struct token_vec *out)
{
    static const char sign[] = "\xe2\x98\xba";
    const char *text = json_string_value(a->suffix);
    size_t len = json_string_length(a->suffix);
    if (!a->fim->bare)
        return add_text(s->tok, a, text, len, out);
    const size_t limit = out->limit ? out->limit + FIM_SIGN : 0;
    struct token_vec alone = {.work = a->work}, both = {.work = a->work, .limit = limit};
    struct ek_buf joined = {0};
    (void)ek_buf_puts(&joined, sign);
    (void)ek_buf_add(&joined, text, len);
    int r = ek_buf_ok(&joined) ? 0 : -ENOMEM;
    if (r == 0)
        r = tokenizer_encode(s->tok, sign, sizeof(sign) - 1, true, 0, &alone);
    if (r == 0)
        r = add_text(s->tok, a, joined.data, joined.len, &both);
    for (size_t i = alone.count; r == 0 && i < both.count; i++)
        r = tokens_push(out, both.at[i]);
    token_vec_done(&alone);
    token_vec_done(&both);
    ek_buf_done(&joined);
    return r;
}

/* What was written up to now, and the mark of a file with its name. */
static int next_file(const struct served *s, const struct openai_ask *a, struct ek_buf *text,
                     const char *name, struct token_vec *out)
{
    int r = ek_buf_ok(text) ? add_text(s->tok, a, text->data, text->len, out) : -ENOMEM;
    if (r == 0)
        r = add_mark(s->tok, a->fim->file, out);
    ek_buf_clear(text);
    (void)ek_buf_printf(text, "%s\n", name);
    return r;
}

/* Other files, each with its name where the model has marks for that: in the row in which it was
 * trained on projects. The names that are not known are llama-server's. */
static int add_extra(const struct served *s, const struct openai_ask *a, struct token_vec *out)
{
    const struct fim *f = a->fim;
    const bool named =
        f->repo && tokenizer_find(s->tok, f->repo) >= 0 && tokenizer_find(s->tok, f->file) >= 0;
    struct ek_buf text = {0};
    int r = named ? add_mark(s->tok, f->repo, out) : 0;
    if (named)
        (void)ek_buf_puts(&text, "myproject\n");
    for (size_t i = 0; i < json_array_size(a->extra) && r == 0; i++) {
        const json_t *one = json_array_get(a->extra, i), *name = field_of(one, "filename");
        const json_t *body = field_of(one, "text");
        const size_t len = json_string_length(body);
        const char *bytes = json_string_value(body);
        if (named)
            r = next_file(s, a, &text, name ? json_string_value(name) : "tmp", out);
        (void)ek_buf_add(&text, bytes, len);
        if (!named && len && bytes[len - 1] != '\n')
            (void)ek_buf_puts(&text, "\n");
    }
    if (r == 0 && named)
        r = next_file(s, a, &text, "filename", out);
    if (r == 0)
        r = ek_buf_ok(&text) ? add_text(s->tok, a, text.data, text.len, out) : -ENOMEM;
    ek_buf_done(&text);
    return r;
}

int fim_tokens(const struct served *s, const struct openai_ask *a, const char *prefix, size_t len,
               struct token_vec *out)
{
    int r = a->add_specials ? tokenizer_encode_prompt(s->tok, "", 0, out) : 0;
    if (r == 0 && a->extra)
        r = add_extra(s, a, out);
    if (r == 0)
        r = add_mark(s->tok, a->fim->prefix, out);
    if (r == 0)
        r = add_text(s->tok, a, prefix, len, out);
    if (r == 0)
        r = add_mark(s->tok, a->fim->suffix, out);
    if (r == 0)
        r = add_suffix(s, a, out);
    return r == 0 ? add_mark(s->tok, a->fim->middle, out) : r;
}
