/*
 * libevenkeel-mpi.so: the table of wire.h over MPI, the only file that includes mpi.h. One lock is
 * around each call, so MPI need not be safe for several threads at once (MPI_THREAD_SERIALIZED);
 * no thread waits inside of it, since calls of MPI that wait keep a core busy.
 *
 * Orders have a communicator of their own: there the oldest message of any tag is asked for. A
 * message's `request` is Open MPI's, which is a pointer and never NULL.
 */
#include <errno.h>
#include <mpi.h>
#include <pthread.h>
#include <stdio.h>

#include "kernels/mpi/wire.h"

extern const struct ek_mpi evenkeel_mpi;

static pthread_mutex_t g_lock = PTHREAD_MUTEX_INITIALIZER;
static MPI_Comm g_data, g_orders;

static MPI_Comm comm_of(uint32_t tag)
{
    return tag >= EK_MPI_ORDER ? g_orders : g_data;
}

static int code_of(int error)
{
    int class = MPI_ERR_OTHER;

    if (error == MPI_SUCCESS)
        return 0;
    (void)MPI_Error_class(error, &class);
    return class == MPI_ERR_TRUNCATE ? -EPROTO : class == MPI_ERR_OTHER ? -ECONNRESET : -EIO;
}

static int mpi_start(void *self, uint32_t *ret_node, uint32_t *ret_nodes, char *ret_why,
                     size_t size)
{
    int level, node, nodes;

    (void)self;
    /* Where it cannot, MPI prints why and ends the process. */
    if (MPI_Init_thread(NULL, NULL, MPI_THREAD_SERIALIZED, &level) != MPI_SUCCESS)
        return -EIO;
    if (level < MPI_THREAD_SERIALIZED) {
        (void)snprintf(ret_why, size, "This MPI was built for programs of one thread");
        return -EIO;
    }
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN); /* which its copies have, too */
    if (MPI_Comm_dup(MPI_COMM_WORLD, &g_data) != MPI_SUCCESS ||
        MPI_Comm_dup(MPI_COMM_WORLD, &g_orders) != MPI_SUCCESS)
        return -EIO;
    MPI_Comm_rank(MPI_COMM_WORLD, &node);
    MPI_Comm_size(MPI_COMM_WORLD, &nodes);
    *ret_node = (uint32_t)node;
    *ret_nodes = (uint32_t)nodes;
    return 0;
}

static int mpi_begin(void *self, struct ek_mpi_message *m)
{
    const MPI_Comm comm = comm_of(m->tag);
    const bool matrix = m->rows > 1 && m->width != m->stride;
    const int node = (int)m->node, tag = (int)m->tag;
    const int count = matrix ? 1 : (int)(m->rows * m->width);
    MPI_Datatype type = MPI_BYTE;
    MPI_Request request = NULL;
    int r = MPI_SUCCESS;

    (void)self;
    pthread_mutex_lock(&g_lock);
    if (matrix)
        r = MPI_Type_vector((int)m->rows, (int)m->width, (int)m->stride, MPI_BYTE, &type);
    if (matrix && r == MPI_SUCCESS)
        r = MPI_Type_commit(&type);
    if (r == MPI_SUCCESS)
        r = m->out ? MPI_Isend(m->data, count, type, node, tag, comm, &request)
                   : MPI_Irecv(m->data, count, type, node, tag, comm, &request);
    if (matrix && r == MPI_SUCCESS)
        r = MPI_Type_free(&type); /* the message keeps it */
    pthread_mutex_unlock(&g_lock);
    m->request = request;
    return code_of(r);
}

static int mpi_test(void *self, struct ek_mpi_message *m)
{
    MPI_Request request = m->request;
    MPI_Status status;
    int done = 0, bytes = 0;

    (void)self;
    pthread_mutex_lock(&g_lock);
    int r = MPI_Test(&request, &done, &status);
    if (r == MPI_SUCCESS && done && !m->out)
        r = MPI_Get_count(&status, MPI_BYTE, &bytes);
    pthread_mutex_unlock(&g_lock);
    if (r == MPI_SUCCESS && !done)
        return 0;
    m->request = NULL;
    if (r != MPI_SUCCESS)
        return code_of(r);
    return m->out || (size_t)bytes == m->rows * m->width ? 1 : -EPROTO;
}

static int mpi_probe(void *self, uint32_t *node, uint32_t *tag, size_t *ret_bytes)
{
    const int from = *node == EK_MPI_ANY ? MPI_ANY_SOURCE : (int)*node;
    const int what = *tag >= EK_MPI_ORDER ? MPI_ANY_TAG : (int)*tag;
    MPI_Status status;
    int there = 0, bytes = 0;

    (void)self;
    pthread_mutex_lock(&g_lock);
    int r = MPI_Iprobe(from, what, comm_of(*tag), &there, &status);
    if (r == MPI_SUCCESS && there)
        r = MPI_Get_count(&status, MPI_BYTE, &bytes);
    pthread_mutex_unlock(&g_lock);
    if (r != MPI_SUCCESS || !there)
        return code_of(r);
    *node = (uint32_t)status.MPI_SOURCE;
    *tag = (uint32_t)status.MPI_TAG;
    *ret_bytes = (size_t)bytes;
    return 1;
}

static void mpi_finish(void *self)
{
    (void)self;
    (void)MPI_Finalize();
}

static void mpi_abort(void *self, int code)
{
    (void)self; /* without the lock: its holder is ended as well */
    (void)MPI_Abort(MPI_COMM_WORLD, code);
}

__attribute__((visibility("default"))) const struct ek_mpi evenkeel_mpi = {.abi = EK_MPI_ABI,
                                                                           .start = mpi_start,
                                                                           .begin = mpi_begin,
                                                                           .test = mpi_test,
                                                                           .probe = mpi_probe,
                                                                           .finish = mpi_finish,
                                                                           .abort = mpi_abort};
