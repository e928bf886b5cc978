/*
 * A backend for tests of what stands around a server: the CPU's, but each step takes as long as the
 * one before, whatever is in it, as on a card that waits for its memory. So a server that may run
 * fewer sequences makes fewer tokens, and three of them leave room on two cores.
 *
 * Lies beside a copy of evenkeel-server as libevenkeel-cuda.so and is asked for with --device cuda.
 * EVENKEEL_STEP_MS is the length of a step (20). One device, as that is what a server opens.
 */
#include <errno.h>
#include <stdlib.h>
#include <time.h>

#include "common/clock.h"
#include "kernels/backend.h"
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/device.h"

#define IN_FLIGHT 2u

static uint64_t step_us(void)
{
    const char *ms = getenv("EVENKEEL_STEP_MS");
    long n = ms ? strtol(ms, NULL, 10) : 0;
    return (uint64_t)(n > 0 ? n : 20) * 1000;
}

/* When the steps end that are in flight, the last one's too. */
static struct {
    uint64_t at_us[IN_FLIGHT], last_us;
} ends;

static int paced_forward(struct ek_device *d, const struct ek_step *step)
{
    uint64_t now = ek_now_us(), begin = now > ends.last_us ? now : ends.last_us;
    ends.last_us = begin + step_us();
    ends.at_us[step->id % IN_FLIGHT] = ends.last_us;
    return cpu_backend()->forward(d, step);
}

static int paced_wait(struct ek_device *d, uint64_t step_id, struct ek_result *ret_result,
                      size_t bytes, uint64_t timeout_us)
{
    uint64_t now = ek_now_us(), end = ends.at_us[step_id % IN_FLIGHT];
    if (timeout_us == 0 && now < end)
        return -ETIMEDOUT;
    int r = cpu_backend()->wait(d, step_id, ret_result, bytes, timeout_us);
    now = ek_now_us();
    if (r == 0 && now < end) {
        struct timespec left = {.tv_sec = (time_t)((end - now) / EK_US_PER_S),
                                .tv_nsec = (long)((end - now) % EK_US_PER_S) * 1000};
        (void)nanosleep(&left, NULL); /* shorter after a signal is as good */
    }
    return r;
}

__attribute__((visibility("default"))) const struct ek_backend *ek_backend_get(uint32_t abi);

const struct ek_backend *ek_backend_get(uint32_t abi)
{
    static struct ek_backend paced;
    if (abi != EK_BACKEND_ABI)
        return NULL;
    paced = *cpu_backend();
    paced.name = "cuda";
    paced.forward = paced_forward;
    paced.wait = paced_wait;
    return &paced;
}
