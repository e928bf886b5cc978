/*
 * Which kind of lack of memory a finding is, by the numbers that were said of it, and what its
 * remedies ask of those numbers (resolve.h). Four numbers decide: what was asked for, what was
 * free, what the pool had reserved without using it, and the size of the card.
 */
#include "supervisor/doctor/resolve.h"

#include "supervisor/doctor/flow.h"

#define NOT_FULL_PART  2                     /* so often what was asked for was free, ... */
#define NOT_FULL_BYTES (512.0 * 1024 * 1024) /* ... and so much besides */
#define PIECES_PART    2.0 /* they are the cause when so large a part of it lies in them */
#define SHARED_PART    4   /* another process holds so large a part of the card, ... */
#define SHARED_MORE    (1.5 * 1024 * 1024 * 1024) /* ... and so much more than this one */

/* What another process holds is what the card lacks. The message may name this process among them:
 * the first that it names is another one when it holds more than PyTorch has here. */
static bool is_shared(const struct doctor_numbers *n)
{
    double others = 0, own = 0, all = 0;
    (void)doctor_numbers_lookup(n, "own", &own);
    return doctor_numbers_lookup(n, "others", &others) &&
           doctor_numbers_lookup(n, "capacity", &all) && others * SHARED_PART > all &&
           others > own + SHARED_MORE;
}

enum doctor_class doctor_resolve(enum doctor_class cls, const struct doctor_numbers *n,
                                 enum doctor_phase phase)
{
    if (cls != DOCTOR_DEVICE_OOM)
        return cls;
    double x = 0, y = 0, z = 0, c = 0;
    bool has_x = doctor_numbers_lookup(n, "requested", &x);
    bool has_y = doctor_numbers_lookup(n, "free", &y);
    bool has_z = doctor_numbers_lookup(n, "reserved", &z);
    if (has_x && doctor_numbers_lookup(n, "capacity", &c) && x > c)
        return DOCTOR_CONFIG;
    if (doctor_phase_early(phase))
        return DOCTOR_STARTUP_OOM;
    if (has_x && has_y && has_z && y < x && y + z >= x && z * PIECES_PART >= x && !is_shared(n))
        return DOCTOR_FRAG_OOM;
    return doctor_phase_late(phase) ? DOCTOR_BURST_OOM : cls;
}

/* Old PyTorch says what is reserved in all. */
static void derive(struct doctor_numbers *n)
{
    double all = 0, allocated = 0;
    if (!doctor_numbers_find(n, "reserved") && doctor_numbers_lookup(n, "reserved_all", &all) &&
        doctor_numbers_lookup(n, "allocated", &allocated) && all >= allocated)
        doctor_numbers_set(n, "reserved", all - allocated, true);
}

/* What the remedies ask: which class it is, and whether the card was full at all. */
static void derive_facts(struct doctor_finding *f)
{
    double x = 0, y = 0;
    if (!doctor_flow_applies(f->cls) && f->signature->cls != DOCTOR_DEVICE_OOM)
        return;
    if (f->cls == DOCTOR_STARTUP_OOM)
        doctor_numbers_set(&f->numbers, "is_startup", 1, false);
    if (f->cls == DOCTOR_BURST_OOM || f->cls == DOCTOR_DEVICE_OOM)
        doctor_numbers_set(&f->numbers, "is_burst", 1, false);
    if (f->cls == DOCTOR_FRAG_OOM)
        doctor_numbers_set(&f->numbers, "is_frag", 1, false);
    if (is_shared(&f->numbers))
        doctor_numbers_set(&f->numbers, "is_shared", 1, false);
    if (f->cls != DOCTOR_STARTUP_OOM)
        doctor_numbers_set(&f->numbers, "is_loading", 0, false);
    if (doctor_numbers_lookup(&f->numbers, "requested", &x) &&
        doctor_numbers_lookup(&f->numbers, "free", &y) && y > NOT_FULL_PART * x &&
        y - x > NOT_FULL_BYTES)
        doctor_numbers_set(&f->numbers, "is_not_full", 1, false);
}

void doctor_resolve_add(struct doctor_numbers *n, const struct doctor_numbers *others)
{
    for (uint32_t i = 0; i < others->count; i++) {
        if (!doctor_numbers_find(n, others->at[i].name))
            doctor_numbers_set(n, others->at[i].name, others->at[i].value, others->at[i].bytes);
    }
}

void doctor_resolve_finding(struct doctor_finding *f, const struct doctor_numbers *facts)
{
    derive(&f->numbers);
    doctor_resolve_add(&f->numbers, facts);
    f->cls = doctor_resolve(f->signature->cls, &f->numbers, f->phase);
    derive_facts(f);
}
