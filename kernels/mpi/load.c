/*
 * Loads the optional module with MPI and takes its table of functions (table.h). Called once, where
 * several processes were started.
 */
#include <dlfcn.h>
#include <errno.h>

#include "common/err.h"
#include "kernels/mpi/table.h"
#include "kernels/plugin.h"

#define MODULE "libevenkeel-mpi.so"

int ek_mpi_load(const struct ek_mpi **ret_mpi, struct ek_fault *fault)
{
    char why[256] = "";
    void *handle = ek_plugin_open(MODULE, why, sizeof(why));
    const struct ek_mpi *mpi = handle ? dlsym(handle, "evenkeel_mpi") : NULL;

    if (mpi && mpi->abi == EK_MPI_ABI) {
        *ret_mpi = mpi;
        return 0;
    }
    ek_fault_write(fault, "nnodes",
                   "Several machines need " MODULE ", which %s%s: install the package "
                   "evenkeel-backend-mpi on all of them, with Open MPI",
                   mpi ? "is of another version than this program" : "cannot be loaded: ", why);
    return -ENOTSUP;
}
