/*
 * Chooses the form of the products of each shape of weights by measuring, and tells the weights
 * (form_choice.h). Called by cpu.c: choose() before a model is loaded, apply() when it is.
 *
 * A form is the tier whose functions multiply, and of weights of 16 bits whether many rows widen
 * them once ("avx512-wide"). What a shape is multiplied with does not depend on the rows, as the
 * bits of a sequence must not depend on its company; so a form is judged by the mean (geometric) of
 * its times at 1, 8 and 64 rows: decoding one sequence, some, and a prompt. Forms take turns, the
 * best turn of each counts, and those far behind take no more part: something else that runs
 * meanwhile slows some turns down, but none up.
 *
 * A form with the same bits needs to be a little faster than the tier's own to be taken, one that
 * changes them clearly, and one that rounds its inputs more has to be worth that.
 */
#include "kernels/cpu/form_choice.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/clock.h"
#include "kernels/cpu/device.h"
#include "kernels/cpu/product.h"
#include "kernels/cpu/shape.h"
#include "kernels/quant.h"

#define SAME_PAYS  1.02 /* the same bits: less is noise */
#define OTHER_PAYS 1.10 /* other bits: what measures as much now does so the next time */
#define ROUND_PAYS 1.40 /* inputs rounded to fewer bits */

#define FORMS_MOST   (2 * CPU_TIERS)
#define TURNS        6u
#define TURNS_OF_ALL 2u         /* before those that are far behind leave */
#define FAR_BEHIND   0.7        /* of the best one's speed */
#define TRIAL_BYTES  (4u << 20) /* of weights: more than the second cache holds */
#define MANY_PANELS  4u         /* of 64 rows */
#define LINE         64u        /* alignment of arrays */

#define TRIALS 3u
static const uint32_t trial_rows[TRIALS] = {1, 8, 64};

/* How inputs are rounded, which with the order of a sum decides its bits. */
enum form_rounding { FLOATS, PAIRS, TILES, WHOLE_NUMBERS };

struct form {
    const struct cpu_ops *ops;
    bool wide;
    uint32_t rounding;
    uint64_t best_us[TRIALS];
    bool left; /* takes no more part */
};

struct form_trial {
    struct ek_device d;
    struct ek_graph g;
    struct cpu_weight w;
    uint32_t panels;
    struct form form[FORMS_MOST];
    uint32_t count;
    float *x, *c;
    char *room, *scratch; /* room: that all of them lie in */
};

static bool is_wide(const struct cpu_ops *ops, const struct cpu_weight *w)
{
    return ops != &cpu_ops_ref && !(ops->pairs && w->dtype == EK_BF16) &&
           (w->dtype == EK_BF16 || w->dtype == EK_F16);
}

static enum form_rounding forms_rounding(const struct ek_device *d, const struct cpu_weight *w)
{
    if (ek_dtype_packed(w->dtype) && cpu_in_quads(d, w))
        return WHOLE_NUMBERS;
    const bool pairs = w->ops->pairs && d->graph->dtype == EK_BF16 &&
                       (w->dtype == EK_BF16 || ek_dtype_packed(w->dtype));
#if defined(__x86_64__)
    if (pairs && w->ops == &cpu_ops_amx)
        return TILES;
#endif
    return pairs ? PAIRS : FLOATS;
}

/* Whether two tiers multiply such a weight by the same functions. */
static bool same_functions(const struct cpu_ops *a, const struct cpu_ops *b, enum form_rounding r,
                           const struct cpu_weight *w)
{
    if (r == WHOLE_NUMBERS)
        return a->quads == b->quads;
    return a->gemm == b->gemm && (!ek_dtype_packed(w->dtype) || a->expand == b->expand);
}

static void add_form(struct form_trial *t, const struct cpu_ops *ops, bool wide)
{
    t->w.ops = ops;
    const enum form_rounding r = forms_rounding(&t->d, &t->w);
    for (uint32_t i = 0; i < t->count; i++)
        if (t->form[i].rounding == r && t->form[i].wide == wide &&
            same_functions(t->form[i].ops, ops, r, &t->w))
            return;
    t->form[t->count] = (struct form){.ops = ops, .wide = wide, .rounding = r};
    for (uint32_t i = 0; i < TRIALS; i++)
        t->form[t->count].best_us[i] = UINT64_MAX;
    t->count++;
}

/* The tier's own first, then those of the tiers that this machine lists behind it. */
static void list_forms(struct form_trial *t, const struct cpu_ops *own)
{
    const struct cpu_ops *have[CPU_TIERS];
    uint32_t at = 0;

    add_form(t, own, false);
    cpu_tier_list(have);
    while (have[at] && have[at] != own)
        at++;
    for (uint32_t i = at; have[i]; i++) {
        if (have[i] == &cpu_ops_ref && own != &cpu_ops_ref)
            continue;
        add_form(t, have[i], false);
        if (is_wide(have[i], &t->w))
            add_form(t, have[i], true);
    }
}

/* The next `bytes` of the room, which begins on a line. */
static void *carve(char **at, size_t bytes)
{
    void *from = *at;

    *at += (bytes + LINE - 1) & ~(size_t)(LINE - 1);
    return from;
}

static int trial_init(struct form_trial *t, const struct ek_graph *g, const struct cpu_weight *w)
{
    const size_t most = trial_rows[TRIALS - 1];
    size_t panels = TRIAL_BYTES / (w->panel_bytes + 1) + 1;

    panels = panels > MANY_PANELS ? panels : MANY_PANELS;
    panels = panels < w->panels ? panels : w->panels;
    *t = (struct form_trial){.w = *w, .panels = (uint32_t)panels};
    t->g.dtype = g->dtype;
    t->w.at = 0;
    t->d.graph = &t->g;
    t->d.weight_memory.bytes = panels * w->panel_bytes;
    const size_t x_bytes = most * w->cols * sizeof(*t->x);
    const size_t c_bytes = most * panels * CPU_PANEL * sizeof(*t->c);
    const size_t bytes = t->d.weight_memory.bytes + x_bytes + c_bytes + CPU_PRODUCT_BYTES;
    t->room = malloc(bytes + 5 * (size_t)LINE);
    if (!t->room)
        return -ENOMEM;
    memset(t->room, 0x3c, bytes + 5 * (size_t)LINE); /* 0.01 as bf16 and f32, 1 as f16 */
    char *at = t->room + LINE - (uintptr_t)t->room % LINE;
    t->d.weight_memory.at = carve(&at, t->d.weight_memory.bytes);
    t->x = carve(&at, x_bytes);
    t->c = carve(&at, c_bytes);
    t->scratch = carve(&at, CPU_PRODUCT_BYTES);
    return 0;
}

static uint64_t turn_us(struct form_trial *t, const struct form *f, uint32_t rows)
{
    const uint32_t many = t->panels < MANY_PANELS ? t->panels : MANY_PANELS;

    t->w.ops = f->ops;
    t->w.wide = f->wide;
    const struct cpu_product p = {.w = &t->w,
                                  .x = t->x,
                                  .x_stride = t->w.cols,
                                  .c = t->c,
                                  .c_stride = (size_t)t->panels * CPU_PANEL,
                                  .rows = rows,
                                  .panels = rows > trial_rows[1] ? many : t->panels,
                                  .scratch = t->scratch};
    const uint64_t begin = ek_now_us();
    cpu_multiply(&t->d, &p);
    return ek_now_us() - begin + 1; /* never 0 */
}

/* How many times as fast as the tier's own. */
static double times_of(const struct form_trial *t, const struct form *f)
{
    double product = 1.0;

    for (uint32_t i = 0; i < TRIALS; i++)
        product *= (double)t->form[0].best_us[i] / (double)f->best_us[i];
    return pow(product, 1.0 / TRIALS);
}

static void take_turns(struct form_trial *t, double times[FORMS_MOST])
{
    for (uint32_t turn = 0; turn < TURNS; turn++) {
        double best = 0;
        for (uint32_t i = 0; i < t->count; i++) {
            struct form *f = &t->form[i];
            for (uint32_t k = 0; k < TRIALS && !f->left; k++) {
                const uint64_t us = turn_us(t, f, trial_rows[k]);
                f->best_us[k] = us < f->best_us[k] ? us : f->best_us[k];
            }
            times[i] = times_of(t, f);
            best = times[i] > best ? times[i] : best;
        }
        for (uint32_t i = 1; i < t->count; i++)
            t->form[i].left =
                t->form[i].left || (turn + 1 >= TURNS_OF_ALL && times[i] < best * FAR_BEHIND);
    }
}

uint32_t cpu_forms_best(const double *times, const uint32_t *rounding, uint32_t count)
{
    uint32_t best = 0;

    for (uint32_t i = 1; i < count; i++) {
        const double least = rounding[i] == rounding[0]  ? SAME_PAYS
                             : rounding[i] > rounding[0] ? ROUND_PAYS
                                                         : OTHER_PAYS;
        if (times[i] >= least && times[i] > times[best])
            best = i;
    }
    return best;
}

static int measure(const struct cpu_ops *own, const struct ek_graph *g, const struct cpu_weight *w,
                   struct ek_form *ret_form)
{
    uint32_t rounding[FORMS_MOST];
    double times[FORMS_MOST] = {1.0};
    struct form_trial *t = calloc(1, sizeof(*t));
    int r = t ? trial_init(t, g, w) : -ENOMEM;

    if (r == 0) {
        list_forms(t, own);
        if (t->count > 1)
            take_turns(t, times);
        for (uint32_t i = 0; i < t->count; i++)
            rounding[i] = t->form[i].rounding;
        const uint32_t best = cpu_forms_best(times, rounding, t->count);
        (void)snprintf(ret_form->name, sizeof(ret_form->name), "%s%s", t->form[best].ops->name,
                       t->form[best].wide ? "-wide" : "");
        ret_form->times = times[best];
    }
    if (t)
        free(t->room);
    free(t);
    return r;
}

static struct ek_form shape_of(const struct ek_graph *g, const struct cpu_weight *w)
{
    return (struct ek_form){
        .dtype = w->dtype, .graph = g->dtype, .rows = w->rows, .cols = w->cols, .group = w->group};
}

/* Its place, or the count. */
static uint32_t forms_find(const struct ek_forms *forms, const struct ek_form *shape)
{
    for (uint32_t i = 0; i < forms->count; i++) {
        const struct ek_form *f = &forms->form[i];
        if (f->dtype == shape->dtype && f->graph == shape->graph && f->rows == shape->rows &&
            f->cols == shape->cols && f->group == shape->group)
            return i;
    }
    return forms->count;
}

/* Puts it behind those that are used; where there is no room, one that is not used goes. */
static void use_form(struct ek_forms *forms, uint32_t at, const struct ek_form *f)
{
    if (at < forms->used)
        return;
    if (at == EK_MOST_FORMS)
        at--;
    forms->count += at == forms->count;
    forms->form[at] = forms->form[forms->used];
    forms->form[forms->used++] = *f;
}

/* The tier that a form's name begins with, NULL where this machine has none of it; `ret_how`: what
 * stands behind it. */
static const struct cpu_ops *form_tier(const char *name, const char **ret_how)
{
    const struct cpu_ops *have[CPU_TIERS];
    const size_t len = strcspn(name, "-");

    *ret_how = name + len;
    cpu_tier_list(have);
    for (uint32_t i = 0; have[i]; i++)
        if (strlen(have[i]->name) == len && strncmp(have[i]->name, name, len) == 0)
            return have[i];
    return NULL;
}

/* Whether a form that was kept is one of this machine. */
static bool form_known(const char *name)
{
    const char *how;

    return form_tier(name, &how) && (how[0] == '\0' || strcmp(how, "-wide") == 0);
}

int cpu_forms_choose(const struct cpu_ops *own, const struct ek_graph *g, struct ek_forms *forms)
{
    int r = 0;

    for (uint32_t i = 0; r == 0 && i < g->weight_count && forms->used < EK_MOST_FORMS; i++) {
        struct cpu_weight w;
        cpu_weight_shape(g, i, &w);
        if (w.layout != CPU_PANELS || w.panels == 0)
            continue;
        struct ek_form f = shape_of(g, &w);
        const uint32_t at = forms_find(forms, &f);
        const bool kept = at < forms->count && form_known(forms->form[at].name);
        if (kept)
            f = forms->form[at];
        else
            r = measure(own, g, &w, &f);
        forms->measured += !kept;
        if (r == 0)
            use_form(forms, at, &f);
    }
    return r;
}

/* A name that this machine does not know is as none. */
static void take_form(const char *name, struct cpu_weight *w)
{
    const char *how;
    const struct cpu_ops *ops = form_tier(name, &how);

    if (!ops)
        return;
    w->ops = ops;
    w->wide = strcmp(how, "-wide") == 0 && is_wide(ops, w);
}

void cpu_forms_apply(struct ek_device *d, const struct ek_forms *forms)
{
    double times;
    bool asked = false, wide = false; /* once, and only where no table says so */

    for (uint32_t i = 0; i < d->graph->weight_count; i++) {
        struct cpu_weight *w = &d->weights[i];
        const struct ek_form shape = shape_of(d->graph, w);
        const uint32_t at = forms ? forms_find(forms, &shape) : 0;
        w->ops = d->ops;
        if (forms && at < forms->count) {
            take_form(forms->form[at].name, w);
        } else if (w->layout == CPU_PANELS && is_wide(d->ops, w)) {
            wide = asked ? wide : cpu_widens(d->ops, d->graph->dtype, &times);
            asked = true;
            w->wide = wide;
        }
    }
}
