/* Calls of tools: the frame that a parser reads, and arguments that are valid. */
#include <errno.h>
#include <string.h>

#include "common/err.h"
#include "server/grammar/schema_inside.h"

/* One call: <tool_call>, name and arguments, </tool_call>. */
static int read_call(struct schema_reader *r, const json_t *tool, uint32_t *ret_expr)
{
    const json_t *function = json_object_get(tool, "function");
    const json_t *name = json_object_get(function, "name");
    const json_t *parameters = json_object_get(function, "parameters");
    struct expr_list all = {.set = r->set};
    uint32_t key = EXPR_EMPTY, arguments = EXPR_EMPTY;
    json_t *any = json_pack("{s:s}", "type", "object");
    int code = json_is_string(name) && any ? 0 : -EBADMSG;

    /* References are into the parameters. */
    r->root = json_is_object(parameters) ? parameters : any;
    r->refs = json_object();
    if (code == 0)
        code = r->refs ? json_literal(r, name, &key) : -ENOMEM;
    if (code == 0)
        code = schema_value(r, r->root, &arguments);
    json_decref(r->refs);
    expr_push(&all, expr_text(r->set, "<tool_call>\n{\"name\": "));
    expr_push(&all, key);
    expr_push(&all, expr_text(r->set, ", \"arguments\": "));
    expr_push(&all, json_as_call(r, arguments, "arguments"));
    expr_push(&all, expr_text(r->set, "}\n</tool_call>"));
    *ret_expr = expr_seq(&all);
    json_decref(any);
    return code;
}

static int read_calls(struct schema_reader *r, const json_t *root, uint32_t *ret_expr)
{
    const json_t *tools = json_object_get(root, "tools"), *only = json_object_get(root, "name");
    struct expr_list alt = {.set = r->set};
    uint32_t most = (uint32_t)json_integer_value(json_object_get(root, "most"));
    int code = 0;

    for (size_t i = 0; code == 0 && i < json_array_size(tools); i++) {
        const json_t *tool = json_array_get(tools, i);
        const json_t *name = json_object_get(json_object_get(tool, "function"), "name");
        uint32_t e = EXPR_NEVER;
        if (json_is_string(only) && !json_equal(only, name))
            continue;
        code = read_call(r, tool, &e);
        expr_push(&alt, e);
    }
    uint32_t one = json_as_call(r, expr_alt(&alt), "call");
    uint32_t next = expr_pair(r->set, expr_text(r->set, "\n"), one);
    *ret_expr = expr_pair(r->set, one, expr_repeat(r->set, next, 0, most > 1 ? most - 1 : 0));
    return code;
}

int schema_read_calls(struct expr_set *set, const char *text, size_t len, uint32_t *ret_rule,
                      struct ek_fault *fault)
{
    struct schema_reader r = {.set = set, .fault = fault};
    json_t *root = json_loadb(text, len, 0, NULL);
    uint32_t body = EXPR_NEVER;
    int code = json_is_object(root) ? read_calls(&r, root, &body)
                                    : ek_fault_set(fault, "", "the tools are no JSON object");

    if (code == -EBADMSG && fault && !fault->msg[0])
        (void)ek_fault_set(fault, "", "a tool has no name");
    *ret_rule = expr_rule_new(set, "root");
    expr_rule_set(set, *ret_rule, body);
    json_decref(root);
    return code;
}
