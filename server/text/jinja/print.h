/* Values as text, as Python writes them: str(), repr() and json.dumps(). */
#pragma once

#include "server/text/jinja/value.h"

struct jprint_json {
    bool ascii; /* escape what is beyond ASCII */
    bool sort_keys;
    bool pretty; /* one element a line, each level indented by `indent` */
    struct jstr indent;
    struct jstr comma, colon; /* ", " (",", when pretty) and ": " */
};

int jprint_str(struct jr *r, const struct jv *v, struct jout *out);
int jprint_repr(struct jr *r, const struct jv *v, struct jout *out);
int jprint_as_json(struct jr *r, const struct jv *v, const struct jprint_json *how,
                   struct jout *out);
/* str(v) as a value; a string is itself, undefined is empty. */
int jprint_to_string(struct jr *r, const struct jv *v, struct jstr *ret);
