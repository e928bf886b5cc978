/*
 * NVIDIA's library, read once, by a process that may be blocked for it: the fork that gpus.c makes,
 * or the program evenkeel-nvml, which answers on a socket of systemd's so that evenkeeld itself
 * needs no device. An answer is one struct gpus in one packet.
 */
#pragma once

#include "supervisor/io/devices.h"

#define NVML_SOCKET "/run/evenkeel-nvml.sock" /* of evenkeel-nvml.socket */

/* Fills *ret_gpus; a failure is its `error` and `text`. May block for as long as a sick device
 * does, and keeps the library open. */
void nvml_read(struct gpus *ret_gpus);
