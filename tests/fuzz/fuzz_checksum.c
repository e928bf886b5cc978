/* Any bytes as a list of checksums: every name that is accepted is a plain file name. */
#include <assert.h>
#include <stddef.h>
#include <stdint.h>

#include "common/err.h"
#include "server/model/checksum.h"
#include "server/model/files.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct checksum_list list = {0};
    struct ek_fault f = {0};

    if (checksum_parse("f", (const char *)data, size, &list, &f) == 0) {
        assert(list.count > 0 && list.count <= CHECKSUM_FILES_MOST);
        for (uint32_t i = 0; i < list.count; i++)
            assert(model_name_ok(list.at[i].name));
    }
    checksum_done(&list);
    return 0;
}
