/* The table of the CPU backend; what it is inside is device.h. */
#pragma once

struct ek_backend;

const struct ek_backend *cpu_backend(void);
