/*
 * Tool calls in the text of an answer. Models write them in several styles:
 *
 *     hermes       <tool_call>{"name": "f", "arguments": {...}}</tool_call>
 *     llama3_json  {"name": "f", "parameters": {...}}; {...}          the whole answer
 *     mistral      [TOOL_CALLS][{"name": "f", "arguments": {...}}]    or [TOOL_CALLS]f{...}
 *     qwen3_coder  <tool_call><function=f><parameter=x>1</parameter></function></tool_call>
 *                  (the first mark may be missing)
 *                  ernie45 is hermes with its own thinking; seed_oss this with other marks:
 *                  <seed:tool_call>
 *     minimax_m2   <minimax:tool_call><invoke name="f"><parameter name="x">1</parameter></invoke>
 *                  </minimax:tool_call>
 *     dots         the same between <dots_function_call> and </dots_function_call>
 *     deepseek_v32 <｜DSML｜function_calls><｜DSML｜invoke name="f">
 *                  <｜DSML｜parameter name="x" string="false">1</｜DSML｜parameter>
 *                  </｜DSML｜invoke></｜DSML｜function_calls>; V4 has tool_calls there
 *     deepseek_v41 as deepseek_v32, with a blank behind each ｜DSML｜ and
 *                  "calls" where that has function_calls
 *
 *     step3        <｜tool_calls_begin｜><｜tool_call_begin｜>function<｜tool_sep｜>
 *                  <steptml:invoke name="f"><steptml:parameter name="x">1
 *                  </steptml:parameter></steptml:invoke><｜tool_call_end｜>
 *                  <｜tool_calls_end｜>
 *     minicpm5     <function name="f"><param name="x">1</param></function>
 *     kimi_k3      <|open|>tools<|sep|><|open|>call tool="f" index="1"<|sep|>
 *                  <|open|>argument key="x" type="number"<|sep|>1<|close|>argument<|sep|>
 *                  <|close|>call<|sep|><|close|>tools<|sep|>
 *     mimo         as qwen3_coder, but no line's end is added to a value
 *     glm45        <tool_call>f<arg_key>x</arg_key><arg_value>1</arg_value></tool_call>
 *     hy_v3        <tool_calls:opensource><tool_call:opensource>f<tool_sep:opensource>
 *                  and parameters as glm45's, </tool_call:opensource></tool_calls:opensource>:
 *                  special tokens, which Hy3-preview has without :opensource
 *     hunyuan_a13b <tool_calls>[{"name": "f", "arguments": {...}}]</tool_calls>
 *     deepseek_v3  calls_begin call_begin function sep f, a line with ```json, {...}, ```,
 *                  call_end calls_end: its marks are special tokens
 *     deepseek_v31 calls_begin call_begin f sep {...} call_end calls_end
 *     gemma4       <|tool_call>call:f{x:1,s:<|"|>text<|"|>}<tool_call|>
 *     functiongemma
 *                  <start_function_call>call:f{x:1,s:<escape>text<escape>}<end_function_call>
 *     kimi_k2      section_begin call_begin functions.f:0 argument_begin {...} call_end
 *                  section_end: special tokens, too
 *     granite      <|tool_call|>[{"name": "f", "arguments": {...}}] or <tool_call>[...]
 *     phi4_mini_json
 *                  functools[{"name": "f", "arguments": {...}}]
 *     longcat      as hermes between <longcat_tool_call> and </longcat_tool_call>, internlm
 *                  between <|action_start|><|plugin|> and <|action_end|>
 *     granite-20b-fc
 *                  <function_call> {"name": "f", "arguments": {...}}
 *     gigachat3    <|function_call|>{"name": "f", "arguments": {...}}; before 3.1 the call is a
 *                  message of its own, behind <|message_sep|>, "function call" and <|role_sep|>
 *     cohere_command3
 *                  <|START_ACTION|>[{"tool_call_id": "0", "tool_name": "f", "parameters": {...}}]
 *                  <|END_ACTION|>
 *     apertus      <|tools_prefix|>[{"f": {...}}]<|tools_suffix|>
 *     xlam         [{"name": "f", "arguments": {...}}]                the whole answer
 *     nemotron_json
 *                  <TOOLCALL>[{"name": "f", "arguments": {...}}]</TOOLCALL>
 *     pythonic     [f(x=1), g()]                                      the whole answer
 *     lfm2         <|tool_call_start|>[f(x=1), g()]<|tool_call_end|>
 *     olmo3        <function_calls>, f(x=1) and g() on a line each, </function_calls>
 *
 * The text comes in pieces cut anywhere, which changes nothing. What may still become a call is
 * held back, the rest is passed on at once; a call is known when its name and the beginning of its
 * arguments are there, and from then on the arguments grow as they come. What does not begin like a
 * call stays text, byte for byte. White space around calls is dropped. Pure.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <jansson.h>

#include "common/buf.h"

#define TOOLCALL_MOST     128u /* calls of one answer; further ones stay text */
#define TOOLCALL_NAME_LEN 256u
#define TOOLCALL_RUNS     6u /* runs of blanks in the head of a call */

enum toolstyle {
    TOOLS_NONE,
    TOOLS_HERMES,
    TOOLS_LLAMA3_JSON,
    TOOLS_MISTRAL,
    TOOLS_QWEN3_CODER,
    TOOLS_PYTHONIC,
    TOOLS_SEED_OSS,
    TOOLS_GLM45,
    TOOLS_ERNIE45,
    TOOLS_HUNYUAN,
    TOOLS_DEEPSEEK_V3,
    TOOLS_DEEPSEEK_V31,
    TOOLS_GEMMA4,
    TOOLS_KIMI_K2,
    TOOLS_MINIMAX_M2,
    TOOLS_DOTS,
    TOOLS_DEEPSEEK_V32,
    TOOLS_GRANITE,
    TOOLS_PHI4_MINI,
    TOOLS_NEMOTRON,
    TOOLS_LFM2,
    TOOLS_OLMO3,
    TOOLS_HY_V3,
    TOOLS_LONGCAT,
    TOOLS_INTERNLM,
    TOOLS_GRANITE_20B,
    TOOLS_GIGACHAT3,
    TOOLS_COHERE,
    TOOLS_APERTUS,
    TOOLS_XLAM,
    TOOLS_DEEPSEEK_V41,
    TOOLS_STEP3,
    TOOLS_MINICPM5,
    TOOLS_KIMI_K3,
    TOOLS_MIMO,
    TOOLS_FUNCTIONGEMMA,
    TOOLS_OPENAI /* harmony.h takes them out, not this */
};

struct toolcall {
    char *name;
    char *id;           /* that the model gave it; NULL: none, or that of a call before it */
    struct ek_buf args; /* JSON text of an object, so far */
};

/* Where the text is. Those but the first two are inside of what may be a call. */
enum toolstate {
    TOOL_OUTSIDE,
    TOOL_PLAIN,
    TOOL_HEAD,
    TOOL_ARGS,
    TOOL_REST,
    TOOL_PARAMS,
    TOOL_TAIL
};

/* One JSON object, byte by byte. */
struct toolscan {
    uint32_t depth;
    bool string, escaped; /* inside of one */
    bool value;           /* behind the colon of a member of the outermost object */
    bool keyed;           /* its key is whole */
    char key[16], name[TOOLCALL_NAME_LEN]; /* as written, without quotes */
    uint32_t key_len, name_len;
    const char *name_key; /* whose value is the name: NULL = "name", "" = each key is one itself */
    bool has_name, bad;
    size_t args_at, args_end; /* in the bytes of the object, 0 = none yet */
};

/* All zero but style, tools and marked at the beginning. */
struct toolcalls {
    enum toolstyle style;
    const json_t *tools; /* of the request: types of parameters; may be NULL */
    bool marked; /* strict tools: only behind its first mark is a call bound to its schema */
    bool either; /* a grammar has the answer begin with a call, or hold none: see GRAMMAR_EITHER */
    enum toolstate state;
    struct ek_buf held; /* bytes not decided yet */
    size_t looked;      /* of them, read */
    /* Where of them runs of blanks begin, and how far they were read: see tool_blanks(). */
    struct {
        size_t from, to;
    } run[TOOLCALL_RUNS];
    uint32_t runs;
    struct toolscan scan;
    bool midst;           /* text was passed on since the beginning or the last call */
    bool second;          /* the marks of the calls are those of the style's second one */
    bool listed, listing; /* inside of a list of calls; a first object may begin one */
    bool scanning;        /* the object begins at held.data[begin] */
    bool bare;            /* the arguments are not inside of an object */
    size_t begin, key_end;
    bool open; /* the last call still grows */
    struct toolcall *call;
    uint32_t count, cap;
    const json_t *params; /* what the request's tools say about those of call number... */
    uint32_t params_of;   /* ... this one, counted from 1 */
};

/* The style of that name, TOOLS_NONE if there is none. */
enum toolstyle toolstyle_find(const char *name);
const char *toolstyle_name(enum toolstyle style);
/* Takes a piece; appends to `text` what is plain text for certain. 0 or -ENOMEM. */
int toolcalls_push(struct toolcalls *t, const char *bytes, size_t len, struct ek_buf *text);
/* The answer is over: decides about what is held. A call that has begun is one. */
int toolcalls_end(struct toolcalls *t, struct ek_buf *text);
void toolcalls_done(struct toolcalls *t);

/* ---- shared between toolcall.c and the styles' files ---- */

/* What a step says: more to do, nothing before more bytes come, or -ENOMEM. */
#define TOOL_MORE 1
#define TOOL_WAIT 0

static inline bool tool_blank(char c)
{
    return c == ' ' || c == '\t' || c == '\n' || c == '\r';
}
/* Begins a call with this name; -ENOMEM. tool_full(): no more of them. */
int tool_begin(struct toolcalls *t, const char *name, size_t len);
/* The model's id of the last call, which counts if no call before it has the same; -ENOMEM. */
int tool_named(struct toolcalls *t, const char *id, size_t len);
bool tool_full(const struct toolcalls *t);
/* Adds to the arguments of the last call. */
int tool_args(struct toolcalls *t, const char *bytes, size_t len);
/* Behind the blanks at `at` of the held bytes. Each is looked at once, as often as it is asked: a
 * model may write very many, a token each. */
size_t tool_blanks(struct toolcalls *t, size_t at);
/* Behind the mark that calls began with, and blanks; of a further call of a section behind blanks.
 */
size_t tool_behind_mark(struct toolcalls *t);
/* Drops n held bytes, which are read. */
void tool_drop(struct toolcalls *t, size_t n);
/* Compares the held bytes at `at` with a word: 1 = there it is, 0 = it may still become it, -1. */
int tool_word(const struct toolcalls *t, size_t at, const char *word);
/* The held bytes are no call: text, and whether there may be one later. */
int tool_text(struct toolcalls *t, struct ek_buf *text, enum toolstate then);

/* The mark that calls of the style begin with, another that may stand for it, or "", and the one
 * behind each of them, or "". */
const char *toolstyle_begin(enum toolstyle style);
const char *toolstyle_second(enum toolstyle style);
const char *toolstyle_end(enum toolstyle style);
/* Whether its calls are a list of JSON objects. */
bool toolstyle_lists(enum toolstyle style);
/* Whether calls are the whole answer, with no mark that must begin them. */
bool toolstyle_whole(enum toolstyle style);
/* Forgets what was seen of a call that may begin. */
void tool_begin_head(struct toolcalls *t);
/* Behind a call's arguments in a section: the marks that may follow, the last of which ends the
 * section, then `begin` of the next call. */
int tool_section_tail(struct toolcalls *t, const char *const *ends, size_t count,
                      const char *begin);

/* One step each, in the state of their names: toolcall_json.c, */
int tool_json_head(struct toolcalls *t, struct ek_buf *text);
int tool_json_args(struct toolcalls *t);
int tool_json_rest(struct toolcalls *t);
/* The object at `at` of the held bytes is the arguments of a call with that name. */
int tool_json_named(struct toolcalls *t, const char *name, size_t len, size_t at);
/* toolcall_deepseek.c, */
int tool_deepseek_head(struct toolcalls *t, struct ek_buf *text);
int tool_deepseek_tail(struct toolcalls *t);
/* toolcall_qwen.c: parameters as elements, */
extern const char tool_qwen_mark[]; /* "<function=" */
int tool_qwen_head(struct toolcalls *t, struct ek_buf *text);
int tool_glm_head(struct toolcalls *t, struct ek_buf *text);
int tool_qwen_params(struct toolcalls *t, bool over);
/* Adds a parameter whose value came as this text, typed as the tool says. */
int tool_put_param(struct toolcalls *t, const char *key, size_t key_len, const char *value,
                   size_t len);
/* What the request's tools say about a parameter of the last call; NULL when they do not. */
const json_t *tool_schema_of(struct toolcalls *t, const char *key, size_t key_len);
/* toolcall_gemma.c, */
int tool_gemma_head(struct toolcalls *t, struct ek_buf *text);
int tool_gemma_params(struct toolcalls *t, bool over);
/* toolcall_kimi.c, */
int tool_kimi_head(struct toolcalls *t, struct ek_buf *text);
int tool_kimi_tail(struct toolcalls *t);
/* Whether a call begins with <invoke name="NAME">, in a section of its style. */
static inline bool toolstyle_invokes(enum toolstyle style)
{
    return style == TOOLS_MINIMAX_M2 || style == TOOLS_DOTS || style == TOOLS_DEEPSEEK_V32 ||
           style == TOOLS_DEEPSEEK_V41 || style == TOOLS_STEP3 || style == TOOLS_MINICPM5 ||
           style == TOOLS_KIMI_K3;
}
int tool_invoke_head(struct toolcalls *t, struct ek_buf *text); /* of toolcall_qwen.c */
int tool_invoke_tail(struct toolcalls *t);
int tool_hy_head(struct toolcalls *t, struct ek_buf *text); /* likewise */
int tool_hy_tail(struct toolcalls *t);
/* toolcall_python.c. */
int tool_python_list(struct toolcalls *t, struct ek_buf *text);
int tool_lfm_head(struct toolcalls *t, struct ek_buf *text);
int tool_olmo_head(struct toolcalls *t, struct ek_buf *text);
/* Appends a Python literal as JSON. False when it is none; then out has rubbish behind what it had.
 */
bool tool_python_value(const char *text, size_t len, struct ek_buf *out);
