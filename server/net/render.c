/* The whole answer of a generation, written out (render.h). Called by exchange.c and encoder.c. */
#include "server/net/render.h"

#include "server/api/body.h"
#include "server/api/complete.h"
#include "server/net/arrive.h"
#include "server/net/request.h"
#include "server/net/spans.h"

void render_drop(struct exchange *x)
{
    spans_keep(x);
    if (!generation_drop(x->gen))
        return;
    x->json_bytes -= x->fixed_bytes;
    x->fixed_bytes = 0;
}

/* For a moment it is there twice. */
void render_whole(struct exchange *x, struct answer *a)
{
    struct generation *g = x->gen;
    if (x->crowded == 0)
        x->crowded = ek_bill_set(&x->bill, x->json_bytes + 2 * generation_held(g));
    if (x->crowded < 0)
        arrive_refuse_room(x, x->crowded, "The answer", a);
    else
        body_write(&a->body, g);
}

void render_end(struct exchange *x, const struct answer *a)
{
    render_drop(x);
    ek_bill_force(&x->bill, x->json_bytes + a->body.cap);
}
