/* Reads the program's notes as they lie in memory (build_id.h). */
#include "common/build_id.h"

#include <link.h>
#include <stdbool.h>
#include <stddef.h>
#include <string.h>

#define NOTE_ALIGN 4u

static size_t note_room(size_t bytes)
{
    return (bytes + NOTE_ALIGN - 1) / NOTE_ALIGN * NOTE_ALIGN;
}

/* Of one segment of notes. True when the number was there. */
static bool read_notes(const uint8_t *at, size_t left, uint8_t *ret_id)
{
    while (left >= sizeof(ElfW(Nhdr))) {
        ElfW(Nhdr) note;
        memcpy(&note, at, sizeof(note));
        const size_t name = note_room(note.n_namesz), bytes = note_room(note.n_descsz);
        if (name > left - sizeof(note) || bytes > left - sizeof(note) - name)
            return false;
        if (note.n_type == NT_GNU_BUILD_ID && note.n_namesz == sizeof(ELF_NOTE_GNU) &&
            memcmp(at + sizeof(note), ELF_NOTE_GNU, sizeof(ELF_NOTE_GNU)) == 0) {
            memcpy(ret_id, at + sizeof(note) + name,
                   note.n_descsz < EK_BUILD_ID_BYTES ? note.n_descsz : EK_BUILD_ID_BYTES);
            return true;
        }
        at += sizeof(note) + name + bytes;
        left -= sizeof(note) + name + bytes;
    }
    return false;
}

/* The first object is the program itself. */
static int of_program(struct dl_phdr_info *info, size_t size, void *ret_id)
{
    (void)size;
    for (uint32_t i = 0; i < info->dlpi_phnum; i++) {
        const ElfW(Phdr) *p = &info->dlpi_phdr[i];
        const uint8_t *at = (const uint8_t *)(uintptr_t)(info->dlpi_addr + p->p_vaddr);
        if (p->p_type == PT_NOTE && read_notes(at, p->p_memsz, ret_id))
            break;
    }
    return 1;
}

void ek_build_id(uint8_t ret_id[EK_BUILD_ID_BYTES])
{
    memset(ret_id, 0, EK_BUILD_ID_BYTES);
    (void)dl_iterate_phdr(of_program, ret_id);
}
