/*
 * Terminals when all of them are written. They may not come round to themselves, so each is a
 * finite automaton. Short ones are put in place of their names in other terminals: there is less to
 * return to.
 *
 * What is ignored is as long as it can be: a comment goes up to the end of its line, whatever
 * stands there. So a comment is written together with the line break, where that is ignored too,
 * or as the last thing of all.
 */
#include <errno.h>
#include <stdlib.h>

#include "common/err.h"
#include "server/grammar/lark_inside.h"
#include "server/grammar/table.h"

#define WEIGHT_MOST 64u /* expressions of a terminal that is put in place of its name */

enum visit { VISIT_NEW, VISIT_OPEN, VISIT_DONE };

static int settle_one(struct lark *r, struct lark_name *n, uint32_t depth, uint32_t *ret_weight);

static struct lark_name *lark_terms_name_of(struct lark *r, uint32_t rule)
{
    for (uint32_t i = 0; i < r->names; i++)
        if (r->name[i].rule == rule)
            return &r->name[i];
    return NULL;
}

/* Follows the terminals in an expression; adds how many expressions it has. */
static int settle_in(struct lark *r, struct lark_name *n, uint32_t at, uint32_t depth,
                     uint32_t *weight)
{
    const struct expr e = r->set->node[at];
    int code = 0;

    *weight += e.kind == EXPR_KIND_TEXT ? e.b : 1;
    if (depth > EXPR_DEPTH_MOST || !ek_work_pay(r->set->work, 1))
        r->set->too_large = true;
    if (!expr_ok(r->set))
        return 0;
    if (e.kind == EXPR_KIND_REPEAT) {
        uint32_t one = 0, times = e.c == EXPR_MANY ? e.b + 1 : e.c;
        code = settle_in(r, n, e.a, depth + 1, &one);
        *weight += one > WEIGHT_MOST || times > WEIGHT_MOST ? WEIGHT_MOST + 1 : one * times;
    } else if (e.kind == EXPR_KIND_SEQ || e.kind == EXPR_KIND_ALT) {
        for (uint32_t i = 0; code == 0 && i < e.b; i++)
            code = settle_in(r, n, r->set->item[e.a + i], depth + 1, weight);
    } else if (e.kind == EXPR_KIND_CALL) {
        struct lark_name *to = lark_terms_name_of(r, e.a);
        uint32_t own = 0;
        if (!to || !ek_work_pay(r->set->work, 1 + r->names / 8))
            return 0;
        code = settle_one(r, to, depth + 1, &own);
        n->lazy |= to->lazy;
        if (code == 0 && own <= WEIGHT_MOST && expr_ok(r->set)) {
            r->set->node[at] = r->set->node[r->set->rule[to->rule].body];
            *weight += own;
        }
    }
    *weight = *weight > WEIGHT_MOST ? WEIGHT_MOST + 1 : *weight;
    return code;
}

static int settle_one(struct lark *r, struct lark_name *n, uint32_t depth, uint32_t *ret_weight)
{
    int code;

    *ret_weight = n->visit == VISIT_DONE ? n->weight : 0;
    if (n->visit == VISIT_DONE)
        return 0;
    if (n->visit == VISIT_OPEN)
        return lark_refuse(r, n->used, "the terminal `%s` comes round to itself: use a rule;",
                           r->set->rule[n->rule].name);
    n->visit = VISIT_OPEN;
    code = settle_in(r, n, r->set->rule[n->rule].body, depth, ret_weight);
    n->visit = VISIT_DONE;
    n->weight = *ret_weight;
    return code;
}

int lark_settle(struct lark *r)
{
    int code = 0;

    for (uint32_t i = 0; code == 0 && i < r->names && expr_ok(r->set); i++) {
        uint32_t weight;
        if (r->name[i].terminal)
            code = settle_one(r, &r->name[i], 0, &weight);
    }
    for (uint32_t i = 0; code == 0 && i < r->names && expr_ok(r->set); i++)
        if (r->name[i].terminal && r->name[i].lazy)
            code = table_shortest(r->set, r->set->rule[r->name[i].rule].body, &r->name[i].cut,
                                  r->fault);
    for (uint32_t i = 0; code == 0 && i < r->names && expr_ok(r->set); i++)
        if (r->name[i].terminal && r->name[i].lazy)
            expr_rule_set(r->set, r->name[i].rule, r->name[i].cut);
    return code;
}

static int cut_ignored(struct lark *r)
{
    int code = 0;

    for (uint32_t i = 0; code == 0 && i < r->cut.count && expr_ok(r->set); i++) {
        uint32_t e = EXPR_EMPTY;
        code = table_shortest(r->set, r->cut.at[i], &e, r->fault);
        expr_push(&r->ignored, e);
    }
    return code;
}

static int find_ends(struct lark *r, struct table_ends *ends)
{
    int code = 0;

    for (uint32_t i = 0; code == 0 && i < r->ignored.count; i++)
        code = table_ends(r->set, r->ignored.at[i], &ends[i], r->fault);
    return code;
}

int lark_ignored(struct lark *r, uint32_t *ret_expr, uint32_t *ret_last)
{
    int code = cut_ignored(r);
    struct table_ends *ends = calloc(r->ignored.count + 1ull, sizeof(*ends));
    struct expr_list all = {.set = r->set}, last = {.set = r->set};
    bool line = false;

    if (code == 0)
        code = ends ? find_ends(r, ends) : -ENOMEM;
    for (uint32_t i = 0; code == 0 && i < r->ignored.count; i++)
        line |= ends[i].line && !ends[i].open;
    for (uint32_t i = 0; code == 0 && i < r->ignored.count; i++) {
        uint32_t e = r->ignored.at[i];
        expr_push(ends[i].open ? &last : &all, e);
        if (ends[i].open && line && !ends[i].by_line)
            expr_push(&all, expr_pair(r->set, e, expr_text(r->set, r->in_json ? "\\n" : "\n")));
    }
    *ret_expr = expr_repeat(r->set, expr_alt(&all), 0, EXPR_MANY);
    *ret_last = expr_alt(&last);
    free(ends);
    return code;
}
