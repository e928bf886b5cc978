/* What the doctor says, see texts.h. */
#include "supervisor/doctor/texts.h"

#define TEXT(name, en, zh) const char doctor_##name##_en[] = en, doctor_##name##_zh[] = zh;
#include "supervisor/doctor/texts.def"
