/*
 * What the engine tells the flight recorder (common/recorder.h): a step when it begins, a step when
 * it has landed, a request when it arrives and when it ends. Sizes and kinds, nothing of what was
 * asked or answered. Engine thread; without a recorder nothing is done.
 */
#pragma once

#include <stdint.h>

struct ek_recorder;
struct engine_stats;
struct flight;
struct request;
struct sched;

/* The newest step in flight goes to the device. */
void record_begin(struct ek_recorder *r, const struct sched *s, uint64_t now_us);
/* A step of which the flight will be gone when it is recorded. */
struct record_landed {
    uint64_t id, planned_us, at_us, took_us; /* id 0 = none */
    uint32_t rows, prefill_rows, seqs, copies;
    int error;
};
/* All but when and how. */
struct record_landed record_landing(const struct flight *f);
/* The step has landed or failed, with the numbers of after it. `before_us`: plan_us, wait_us and
 * mask_us of the record before it, and then of this one. */
void record_step(struct ek_recorder *r, const struct sched *s, const struct engine_stats *now,
                 const struct record_landed *l, uint64_t before_us[3]);
void record_arrived(struct ek_recorder *r, const struct request *q, uint64_t id, uint64_t now_us);
/* Its finish, and when, are in the request. */
void record_ended(struct ek_recorder *r, const struct request *q, uint64_t id);
