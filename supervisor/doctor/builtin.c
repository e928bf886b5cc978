/* The catalog that comes with the program: the file as it is, with a NUL after it; the build runs
 * in the root of the tree. */
#include "supervisor/doctor/catalog.h"

__asm__(".section .rodata\n"
        ".global doctor_builtin\n"
        "doctor_builtin:\n"
        ".incbin \"supervisor/doctor/signatures.yaml\"\n"
        ".byte 0\n"
        ".previous\n");
