/* Frames of calls that are no JSON objects, for schema_tools.c. */
#pragma once

#include "server/grammar/schema_inside.h"

/* Behind the mark, without what ends the call. `bound`: the arguments keep to the schema. */
/* `lines`: a value stands in lines of its own, which mimo's does not. */
int tool_read_qwen(struct schema_reader *r, const json_t *tool, bool bound, bool lines,
                   uint32_t *ret_expr);
int tool_read_glm(struct schema_reader *r, const json_t *tool, bool bound, uint32_t *ret_expr);
/* Hy3's marks have :opensource, its preview's have not. */
int tool_read_hy(struct schema_reader *r, const json_t *tool, bool bound, bool preview,
                 uint32_t *ret_expr);
/* minimax_m2's and dots', DeepSeek's from V3.2 on, step3's, minicpm5's, kimi_k3's. */
int tool_read_invoke(struct schema_reader *r, const json_t *tool, bool bound, const char *style,
                     uint32_t *ret_expr);
/* gemma4's, or functiongemma's, which `escapes` texts. */
int tool_read_gemma(struct schema_reader *r, const json_t *tool, bool bound, bool escapes,
                    uint32_t *ret_expr);
/* name(key=value, ...) */
int tool_read_python(struct schema_reader *r, const json_t *tool, bool bound, uint32_t *ret_expr);
