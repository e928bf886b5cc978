/*
 * What of a card's memory is free, before there is a context on it: the driver says that only to
 * a program that has one, which takes some hundred megabytes of what is asked for.
 * libnvidia-ml.so.1, which comes with the driver, says it to everybody.
 */
#pragma once

#include <stdint.h>

struct cuda_bus {
    uint32_t domain, bus, device;
};

/* Bytes that are free on the card at that place, of `total_bytes` that the driver says it has. 0
 * when it is not known: there is no such library, the card does not say, or what is said is not of
 * this device (one of those that a card is cut up into). */
uint64_t cuda_nvml_free(const struct cuda_bus *at, uint64_t total_bytes);
