/* Horon: collectives for data-parallel training. The public C API, C99.
 *
 * A job is `size` processes (ranks). Each calls horon_init, submits tensors by name, and waits for
 * the works it got back. A background thread agrees with the other ranks which tensors are ready
 * everywhere, fuses small ones, and runs the op that each asked for. Matching is by name, never by
 * order, so ranks may submit in any order.
 *
 * Errors: every function returns a horon_code (0 is success) or says what it returns; the sentence
 * that belongs to the last failure on this thread is horon_last_error(). An error of a work is the
 * same on every rank that has it. No call blocks unless its comment says so.
 *
 * Threads: all functions may be called from any thread, after horon_init has returned.
 * After fork() the child's runtime is foreign: its calls return HORON_ABORTED.
 */
#ifndef HORON_HORON_H_
#define HORON_HORON_H_

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define HORON_VERSION "0.1.0"
#define HORON_API __attribute__((visibility("default")))

typedef enum horon_code {
  HORON_OK = 0,
  HORON_INVALID_ARGUMENT =
      1, /* the call is wrong, or the ranks disagree: this tensor fails, the rest goes on */
  HORON_UNSUPPORTED = 2, /* this build or device cannot do it */
  HORON_UNAVAILABLE = 3, /* a rank or the wire to it is gone: this runtime is finished */
  HORON_ABORTED = 4,     /* shut down while pending, not initialised, or used after fork */
  HORON_INTERNAL = 5,    /* a fault in Horon itself */
  HORON_LATE = 6 /* a rank has not come within HORON_GOSSIP_TIMEOUT: this fails, the rest goes on */
} horon_code;

typedef enum horon_dtype {
  HORON_UINT8 = 0,
  HORON_INT8 = 1,
  HORON_INT16 = 2,
  HORON_INT32 = 3,
  HORON_INT64 = 4,
  HORON_FLOAT16 = 5,
  HORON_BFLOAT16 = 6,
  HORON_FLOAT32 = 7,
  HORON_FLOAT64 = 8,
  HORON_BOOL = 9
} horon_dtype;

/* --- life cycle ------------------------------------------------------------------------------- */

/* Joins the job. Blocks until all ranks have joined, at most HORON_START_TIMEOUT seconds.
 * Under horonrun ranks meet over shared memory; under mpirun, mpiexec or srun over MPI; otherwise
 * this process is a job of one rank. Again while initialised: HORON_OK, nothing happens. After
 * horon_shutdown it joins anew, but where ranks failed (HORON_UNAVAILABLE): that job is over.
 * HORON_INVALID_ARGUMENT names a wrong HORON_* variable. */
HORON_API int horon_init(void);

/* Leaves the job; every pending work fails with HORON_ABORTED, here and on the other ranks.
 * Blocks until the ranks have parted, at most HORON_SHUTDOWN_TIMEOUT_SECONDS. Harmless when not
 * initialised. */
HORON_API int horon_shutdown(void);

HORON_API int horon_is_initialized(void); /* 1 or 0 */

/* For programs whose signal handlers run later than their signals come, as Python's do. While a
 * call of this thread blocks it calls `look` every 50 ms or so, and where that gives anything but 0
 * the call ends with HORON_ABORTED. What it has asked of the other ranks stands: a process set,
 * say, is added or removed once they have called, too. A shutdown then leaves the job without
 * waiting for them. A wait for a work ends with HORON_WAIT_TIMEOUT. horon_run does not look.
 * `look` may call Horon, but no init or shutdown has an effect inside another. Null: no more. Gives
 * what it was. */
typedef int (*horon_look)(void);
HORON_API horon_look horon_set_look(horon_look look);
/* Inside a look: from here until it returns this thread is at work. Before, while it may have to
 * wait for a lock of the program's, it counts as waiting for its tensor, which matters when the
 * ranks' programs have taken different ways. */
HORON_API void horon_look_works(void);

/* This process is about to end because of an error of its own. `what` goes on after "rank N ", as
 * in "raised ValueError: bad batch": the launcher and the other ranks hear it, and whatever they
 * wait for fails with it at once. Returns at once. Afterwards only horon_shutdown is of use. */
HORON_API void horon_abandon(const char* what);

/* Prints to stderr what is pending here and, when rank 0 has answered, which ranks it waits for and
 * what those do. Returns at once. What SIGUSR1 does where the program has no handler for it. */
HORON_API void horon_describe(void);

/* Sentence of this thread's last failure; valid until its next failing call. Never null. */
HORON_API const char* horon_last_error(void);
HORON_API const char* horon_version(void); /* of the library: HORON_VERSION of its build */

/* --- who I am: -1 when not initialised
 * ------------------------------------------------------------ */
HORON_API int horon_rank(void);
HORON_API int horon_size(void);
HORON_API int horon_local_rank(void); /* among the ranks of this node */
HORON_API int horon_local_size(void);
HORON_API int horon_cross_rank(
    void); /* this node's number among the nodes that have this local rank */
HORON_API int horon_cross_size(void);
HORON_API int horon_is_homogeneous(void); /* 1 when all nodes have equally many ranks */

/* How the ranks negotiate ("shm", "mpi", "self") and move bytes between them ("shm", "mpi",
 * "shm+mpi", "self"). Static strings; "" when not initialised. */
HORON_API const char* horon_controller(void);
HORON_API const char* horon_transport(void);
/* 1 if the MPI plugin can be opened in this installation (it is opened and MPI found, not
 * initialised). */
HORON_API int horon_mpi_available(void);
/* How long gossip waits for a rank at most (HORON_GOSSIP_TIMEOUT); 0: without end; -1 before
 * horon_init. */
HORON_API int64_t horon_gossip_timeout_ms(void);

/* --- process sets -------------------------------------------------------------------------------
 */

/* Set 0 is all ranks. Adds a set of `count` global ranks (any order, no repeats). Collective over
 * all ranks, with the same ranks everywhere; blocks. Gives its id, the same on all ranks. */
HORON_API int horon_add_process_set(const int* ranks, int count, int* id);
/* The same, but collective over the ranks of the set alone: the others take no notice. Gives the id
 * of the set with these ranks that was formed already, if there is one; of those that were added it
 * knows nothing, nor they of it. */
HORON_API int horon_form_process_set(const int* ranks, int count, int* id);
/* The same for gossip: HORON_LATE, on every rank, where one comes HORON_GOSSIP_TIMEOUT after the
 * first; then all may try again. Ranks of one set call the same of the two functions. */
HORON_API int horon_form_process_set_in_time(const int* ranks, int count, int* id);
/* Collective over all ranks; blocks. Set 0 cannot be removed. */
HORON_API int horon_remove_process_set(int id);
/* Number of ranks in the set, -1 if there is no such set. */
HORON_API int horon_process_set_size(int id);
/* My rank in the set, -1 if I am not in it or there is no such set. */
HORON_API int horon_process_set_rank(int id);
/* Copies the set's global ranks, ascending, to `ranks` (room for horon_process_set_size). */
HORON_API int horon_process_set_ranks(int id, int* ranks);

/* --- memory in which tensors are reduced where they lie --------------------------------------- */

typedef struct horon_shared_memory horon_shared_memory;

/* `bytes` of zeros for tensors, at a page. Collective over the ranks of the process set, with the
 * same number everywhere; blocks. Where all ranks of a set share a node, a tensor in it that is its
 * own output, at the same place on all ranks, is reduced without being copied: half the bytes to
 * move. (Above 8 KiB, without prescale, in the first process sets: the counter lane.in_place says.)
 * Anything else can be done with it, too. After a call that failed, ranks that live may still write
 * to it until they have left the job.
 * *shared: 0 where ranks of a node cannot map each other's memory; it is then as good as any other.
 * HORON_INVALID_ARGUMENT: the numbers differ; HORON_UNAVAILABLE: a rank has not so much memory. */
HORON_API int horon_share_memory(int64_t bytes, int process_set, horon_shared_memory** memory,
                                 void** data, int* shared);
/* Not collective; also after horon_shutdown. No pending work may use it. */
HORON_API void horon_shared_memory_release(horon_shared_memory* memory);

/* --- submitting
 * ----------------------------------------------------------------------------------- */

/* One tensor and what to do with it. Zero-initialise, then set `struct_bytes` and what you need.
 * The memory of input and output is lent until the work is done; all else is copied during the
 * call. */
typedef struct horon_request {
  size_t struct_bytes; /* sizeof(horon_request): lets later versions append fields */
  const char* name;    /* unique among pending requests of its process set */
  const char* op;      /* spec: "sum" "average" "min" "max" "product" "broadcast:root=0" "allgather"
                          "alltoall" "reduce_scatter" "reduce_scatter:op=average" "barrier"
                          "dissemination" "gossip:graph=ring" "topk:ratio=0.01", ...
                          (docs/algorithms.md).      A root is a global rank. */
  int dtype;           /* horon_dtype */
  int device;          /* -1: host; otherwise a CUDA ordinal */
  const int64_t* shape; /* elements per dimension */
  int ndim;
  const void* input;     /* contiguous */
  void* output;          /* same shape as input, may equal input; null: the work owns the output
                            (always so for allgather, alltoall and reduce_scatter) */
  double prescale;       /* of the input, before the op; 0 means 1 */
  double postscale;      /* of the result; 0 means 1 */
  int process_set;       /* id; 0 is all ranks */
  const int64_t* splits; /* alltoall: rows for each rank of the set; null: equal parts */
  int splits_count;
  const double* weights; /* mixing weights, for ops that take them */
  int weights_count;
  int64_t round; /* for ops that count rounds: which one this is; 0: the next one */
  void* stream;  /* device >= 0: the cudaStream_t that makes the input; null: the default stream */
} horon_request;

typedef struct horon_work horon_work; /* something pending; reference counted, starts with one */

/* Enqueues one tensor. On success *work is the caller's to release.
 * HORON_INVALID_ARGUMENT: bad dtype, op, shape, or a name that is already pending. */
HORON_API int horon_submit(const horon_request* request, horon_work** work);

/* Enqueues `count` tensors as one group under one work: they complete, and fail, as one, and no
 * tensor is enqueued unless all are. `group` names the group, the same on all ranks. count >= 1. */
HORON_API int horon_submit_group(const horon_request* requests, int count, const char* group,
                                 horon_work** work);

/* horon_submit for a caller that waits at once: wakes nobody, because horon_work_wait then does the
 * work on the caller's thread. Whoever does not wait may leave the tensor lying until the next
 * call. */
HORON_API int horon_begin(const horon_request* request, horon_work** work);

/* horon_begin and horon_work_wait in one call. On failure *work is null. `work` may be null when
 * the request has its own output. */
HORON_API int horon_run(const horon_request* request, horon_work** work);

/* A tensor that is submitted again and again. Registering says once what each submit would: all of
 * the request but its input and output, which are not looked at. Talks to nobody; holds over
 * horon_shutdown and horon_init. Thread safe. The same names may be submitted without it, too. */
typedef struct horon_tensor horon_tensor;
/* HORON_INVALID_ARGUMENT like horon_submit, but that the op and the process set are looked up when
 * it is started. On success *tensor is the caller's to release. */
HORON_API int horon_register(const horon_request* request, horon_tensor** tensor);
/* horon_register of the `count` >= 1 members of a group, as horon_submit_group takes them: started
 * together, with horon_start_all and in this order, they are that group. All or none. */
HORON_API int horon_register_group(const horon_request* requests, int count, const char* group,
                                   horon_tensor** tensors);
HORON_API void horon_tensor_release(horon_tensor* tensor); /* null is fine; works go on */
/* horon_submit of a registered tensor, or horon_begin if the caller `will_wait` (1) at once. */
HORON_API int horon_start(horon_tensor* tensor, const void* input, void* output, int will_wait,
                          horon_work** work);
/* horon_start of `count` >= 1 tensors under one work, which is done when all are, and has the first
 * failure. Unless they were registered as a group, each is ready, and fails, by itself. No tensor
 * is enqueued unless all are. */
HORON_API int horon_start_all(horon_tensor* const* tensors, const void* const* inputs,
                              void* const* outputs, int count, int will_wait, horon_work** work);
/* horon_start of tensors that come one by one and are waited for as one, such as a model's
 * gradients: `*work` null makes a work, to which later calls with it add a tensor each, until
 * horon_work_close, and it is not done before. It has the first failure, and no outputs to ask for.
 * Tensors on the host only, each with an `output`, and ops that fill it: HORON_INVALID_ARGUMENT for
 * those that make one of their own (allgather, alltoall, reduce_scatter, neighbor_allgather), and
 * once the work is closed. HORON_ABORTED if the work was begun before the last horon_init: close it
 * and begin another. One thread at a time for one work. */
HORON_API int horon_start_into(horon_tensor* tensor, const void* input, void* output,
                               horon_work** work);
HORON_API void horon_work_close(horon_work* work); /* again, or of another work: does nothing */

/* This rank has no more tensors until all ranks have joined: then the work is done, and the one
 * number of its received splits is the rank that joined last. Until then what the other ranks
 * submit does not wait for this one: reductions run without it (an average still divides by all
 * ranks of the set), it gives no rows to allgather and alltoall, and what only it could give (the
 * root of a broadcast) is an error. Pending works of this rank go on. On success *work is the
 * caller's to release. */
HORON_API int horon_join(horon_work** work);

/* 1 when finished (well or not), 0 when pending. 1 also where waiting can only fail: in a child forked
 * meanwhile, or when the job has ended and its runtime is stuck with the tensor, which stays lent then
 * (horon_work_peek: 0). horon_work_wait says why.
 * Tensors of a GPU: finished means that everything is enqueued on the device. Nothing waits for the
 * device itself: horon_work_hold_back puts a stream behind the outputs, horon_work_settled asks.
 * Input and output are lent until then. A process works with one GPU. */
HORON_API int horon_work_done(const horon_work* work);
/* The same for who will wait anyway, or does not care when: a steady job works on small tensors
 * when there are enough of them or somebody wants them, and this does not count as wanting. */
HORON_API int horon_work_peek(const horon_work* work);
/* Blocks until finished; returns its code. timeout_ms < 0: no limit. When the time is over it
 * returns HORON_WAIT_TIMEOUT and the work goes on. HORON_UNAVAILABLE also while the work is not
 * done: the job has failed, and the runtime's own thread is stuck (in MPI, in a driver) with its
 * tensors; end the process. HORON_ABORTED the same after a horon_shutdown that left that thread
 * behind. */
#define HORON_WAIT_TIMEOUT (-1)
HORON_API int horon_work_wait(horon_work* work, int timeout_ms);
/* Waits for all, as one: cheaper than one after the other. Returns the first failure's code, in the
 * order given; HORON_WAIT_TIMEOUT where a look has ended it. */
HORON_API int horon_work_wait_all(horon_work* const* works, int count);
/* What is enqueued on this cudaStream_t from now on starts when the outputs are there. For finished
 * works; does nothing for tensors of the host. Does not block. Outputs that are the work's own are
 * used again only behind what these streams, and that of the request, have enqueued when the work is
 * released: the streams live until then. */
HORON_API int horon_work_hold_back(const horon_work* work, void* stream);
/* 1 when a finished work's device, too, is done with input and output; always 1 on the host. */
HORON_API int horon_work_settled(const horon_work* work);
/* Sentence of a failed work; "" otherwise. Lives as long as the work. */
HORON_API const char* horon_work_message(const horon_work* work);
HORON_API void horon_work_retain(horon_work* work);
HORON_API void horon_work_release(horon_work* work); /* null is fine; need not be finished */

/* --- outputs that the work owns: valid once done and ok, until its last reference is released
 * ------- */
HORON_API int horon_work_output_ndim(const horon_work* work,
                                     int index); /* index: member of the group, else 0 */
HORON_API const int64_t* horon_work_output_shape(const horon_work* work, int index);
HORON_API void* horon_work_output(const horon_work* work,
                                  int index); /* null when it has 0 elements */
/* Rows received from each rank of the set (alltoall; allgather: rows by rank); null and 0
 * otherwise. */
HORON_API const int64_t* horon_work_received_splits(const horon_work* work, int index, int* count);

/* --- op specs ------------------------------------------------------------------------------------
 */

/* Whether there is an op that `spec` ("sum", "gossip:graph=ring") names, with parameters that it
 * has, and which reduces: of all ranks' tensors it makes one of their shape, as an allreduce or an
 * optimizer needs it. HORON_INVALID_ARGUMENT with what there is where not. Needs no init and talks
 * to nobody; thread safe. What depends on tensors or on the number of ranks is looked at when a
 * tensor is submitted. */
HORON_API int horon_check_reduction(const char* spec);

/* --- gossip graphs -------------------------------------------------------------------------------
 */

/* Who mixes with whom in each round of an op "gossip:graph=...", and with which weights. Needs no
 * init and talks to nobody; the functions are thread safe, and none blocks. */
typedef struct horon_graph horon_graph;
/* The graph that `spec` means among `size` participants. HORON_INVALID_ARGUMENT: it cannot have so
 * many, or a parameter is wrong. On success *graph is the caller's to release. */
HORON_API int horon_graph_make(const char* spec, int size, horon_graph** graph);
HORON_API void horon_graph_release(horon_graph* graph); /* null is fine */
HORON_API int64_t
horon_graph_period(const horon_graph* graph); /* rounds until it repeats; 0: never */
/* Calls `visit` for each entry of the round's mixing matrix that is not 0, and for each own weight
 * (from == to): the new value of `to` has `weight` times the old one of `from`. round >= 0. */
HORON_API void horon_graph_round(const horon_graph* graph, int64_t round,
                                 void (*visit)(int to, int from, double weight, void* user),
                                 void* user);
/* The most that `rounds` rounds from `first` on leave of the participants' disagreement, from 0
 * (they have the exact mean) to 1. Takes time in proportion to the cube of their number. */
HORON_API double horon_graph_contraction(const horon_graph* graph, int64_t first, int64_t rounds);
/* The fewest rounds that leave at most `tolerance` of it; -1 if more than `most`. */
HORON_API int64_t horon_graph_rounds_for(const horon_graph* graph, int64_t first, double tolerance,
                                         int64_t most);

/* --- windows ------------------------------------------------------------------------------------
 */

/* A tensor that a rank mixes by itself with what its neighbors deliver, whenever each of them
 * likes: nobody else takes part in an order, and none waits longer than HORON_GOSSIP_TIMEOUT. For
 * each in-neighbor a window has a slot of the tensor's shape, the number of deliveries since it was
 * last taken, and a push-sum weight. Values in a slot are never torn. Floating dtypes.
 * Of a tensor on a GPU an order takes a copy to the host, behind `stream`, once the window's orders
 * before it are done, and brings back what it has changed. Its work is done when the way back is
 * enqueued: starting an order returns at once; whoever waits for its work waits until the device
 * has come to the copy, only horon_work_hold_back's stream for the way back; in a round the
 * neighbors wait as well. HORON_GOSSIP_TIMEOUT begins when the copy is there and the order's turn
 * has come.
 * docs/gossip.md says what each order does. */
typedef struct horon_window horon_window;
typedef struct horon_window_spec {
  size_t struct_bytes; /* sizeof(horon_window_spec) */
  const char* name;    /* of this window among those that there are; the same on all ranks */
  int dtype;           /* horon_dtype */
  int device;          /* of the values: -1: host; otherwise a CUDA ordinal, as 0 is */
  const int64_t* shape;
  int ndim;
  void* values;  /* contiguous; lent until the window is freed */
  const int* in; /* ranks that deliver to this one */
  int in_count;
  const int* out; /* ranks that this one delivers to */
  int out_count;
  int zero;    /* 1: slots begin as zeros; 0: as copies of the values */
  int no_gets; /* 1, on all ranks: nobody gets from it, and no order copies the values for that */
  /* Not null: the window mixes in rounds on this graph, such as "gossip:graph=ring", and does
   * nothing else. In and out are the graph's then, and must be empty here. */
  const char* graph;
  int64_t first_round;
  int push_sum; /* of rounds: 1: weights travel, and what a rank could not give stays with it */
  void* stream; /* as in horon_request, of the values */
} horon_window_spec;
/* Collective over all ranks; blocks. HORON_INVALID_ARGUMENT on all of them where they disagree. On
 * success *window is the caller's to free, and then to release. */
HORON_API int horon_window_create(const horon_window_spec* spec, horon_window** window);
/* In its place on a rank that cannot make the window: the others' horon_window_create says which
 * rank, and `why`. HORON_INVALID_ARGUMENT; blocks as the other does. */
HORON_API int horon_window_refuse(const char* name, const char* why);
/* Collective over all ranks; blocks. HORON_INVALID_ARGUMENT on all of them, and the window stays,
 * where a rank has not waited for all that it ordered. */
HORON_API int horon_window_free(horon_window* window);
HORON_API void horon_window_release(horon_window* window); /* null is fine; frees nothing */

typedef enum horon_window_act {
  HORON_WINDOW_PUT = 0,        /* slot[me] of each rank = weight * values; values *= self_weight */
  HORON_WINDOW_ACCUMULATE = 1, /* the same with += */
  HORON_WINDOW_GET = 2,        /* slot[rank] = weight * what that rank published */
  HORON_WINDOW_UPDATE = 3,     /* values = self_weight * values + the sum of weight * slot[rank] */
  HORON_WINDOW_LOCK = 4,       /* takes the mutexes of the ranks; any order of one rank at a time */
  HORON_WINDOW_UNLOCK = 5,
  HORON_WINDOW_PUBLISH = 6, /* what others get from now on; the other orders do it too */
  HORON_WINDOW_PAIR = 7, /* values and those of one rank move towards each other by `weight`; on the
                          * host only, as the next */
  HORON_WINDOW_STEP = 8, /* values += self_weight * input, output = values; one may be null */
  /* values = input, unless that is null; then the tensor's next round: they are mixed with those of
   * its in-neighbors in it, for which it waits. The bits are those of the op on the same graph. */
  HORON_WINDOW_ROUND = 9
} horon_window_act;

typedef struct horon_window_order {
  size_t struct_bytes;   /* sizeof(horon_window_order) */
  int act;               /* horon_window_act */
  const int* ranks;      /* neighbors; of update those whose slots are taken */
  const double* weights; /* theirs; null: 1 */
  int count;
  double self_weight;
  int push_sum;      /* 1: push-sum weights go along */
  int reset;         /* update: 1 empties the slots that were taken */
  int with_mutex;    /* 1: holds the ranks' mutexes meanwhile; update: this rank's own */
  const void* input; /* step; round; where the values are, as the output */
  void* output;      /* step; update: instead of the values, and then slots stay as they are */
  void* stream;      /* as in horon_request, of values and input */
  /* accumulate: 1: only to ranks that ask: once for each horon_window_ask. What self_weight < 1
   * took from the values for the others stays in them. It may take HORON_GOSSIP_TIMEOUT twice. */
  int if_asked;
} horon_window_order;
/* Does not block; `will_wait` as in horon_start. The work's received splits are the ranks whose
 * part was left out because they are gone, or did not answer in time: the others were reached, and
 * what self_weight < 1 took from the values for those stays in them. */
HORON_API int horon_window_start(horon_window* window, const horon_window_order* order,
                                 int will_wait, horon_work** work);
/* Deliveries of rank `from` since they were last taken; -1 if it is no in-neighbor. */
HORON_API int64_t horon_window_deliveries(const horon_window* window, int from);
/* Whether each in-neighbor may deliver once more, of those that do so only if asked; so it is at
 * first. Does not block; what is on its way comes. */
HORON_API void horon_window_ask(const horon_window* window, int wanted);
/* The push-sum weight of this rank's values; 1 at first. */
HORON_API double horon_window_share(const horon_window* window);
/* HORON_INVALID_ARGUMENT while orders are under way. */
HORON_API int horon_window_set_share(horon_window* window, double share);
/* Of a window that mixes in rounds: the next one; 0 of others. */
HORON_API int64_t horon_window_round(const horon_window* window);

/* --- GPUs --------------------------------------------------------------------------------------
 */

/* 1 if this installation has the plugin for CUDA. Opens nothing. */
HORON_API int horon_cuda_built(void);
/* Calls `visit` for "driver", "nccl" and "cublas": its version as it counts (0: it cannot be used),
 * and where it was found, or why it was not. Opens driver and plugin; needs no init. */
HORON_API void horon_gpu_parts(void (*visit)(const char* part, int version, const char* text,
                                             void* user),
                               void* user);

/* --- looking in
 * ------------------------------------------------------------------------------------ */

/* For a thread of the program that can tell where the main thread is (Python's stack, say): blocks
 * until the other ranks want to know, because they wait for this one. 1: now answer with
 * horon_tell_doing; 0: there is no runtime any more. */
HORON_API int horon_await_inquiry(void);
/* Where the program is, as one line that reads on from "its main thread is": "at train.py:57 in
 * load". Stall reports show it. */
HORON_API void horon_tell_doing(const char* text);

/* The calling thread is going to wait, outside of Horon, for what another thread waits for in it, as
 * for a future: it counts as waiting while it sleeps. Returns a number for horon_takes_back, which
 * any thread calls when that is over; 0: there is no runtime. Neither blocks. */
HORON_API int horon_hands_over(void);
HORON_API void horon_takes_back(int thread);

/* Value of a counter (docs/configuration.md lists them), 0 if nothing was counted under that name.
 */
HORON_API int64_t horon_counter(const char* name);
/* Adds n to a counter, which a program may have invented. */
HORON_API void horon_count(const char* name, int64_t n);
/* Calls `visit` for each counter, sorted by name, on this thread. */
HORON_API void horon_counters(void (*visit)(const char* name, int64_t value, void* user),
                              void* user);
/* Records from now on where each tensor's time goes, on all ranks, into one file of Chrome's trace
 * format (docs/debugging.md). Rank 0's call counts, and blocks until rank 0 records; on other ranks
 * it does nothing. Of a tensor the runs first_step, ..., end_step - 1 are recorded; end_step 0:
 * all. A timeline that is recorded already ends. HORON_INVALID_ARGUMENT: the file cannot be made.
 */
HORON_API int horon_start_timeline(const char* path, int mark_cycles, uint64_t first_step,
                                   uint64_t end_step);
/* Ends it. On rank 0 what it recorded is in the file then. Harmless when nothing is recorded. */
HORON_API int horon_stop_timeline(void);
/* In this rank's timeline: that the program did `activity` from `begun` to `ended`, in ns of
 * CLOCK_MONOTONIC, in a row of that name. Returns 1, or 0 when nothing is recorded. Any thread. */
HORON_API int horon_note_in_timeline(const char* row, const char* activity, int64_t begun,
                                     int64_t ended);
/* Bytes of memory that the runtime holds: pools; what this process made for ranks to share
 * (horon_share_memory, windows); this rank's share of the node's segment. Of the shared ones only
 * pages that were touched. Any thread. */
HORON_API int64_t horon_memory_bytes(void);
/* Calls `visit` for each knob of the configuration table. */
HORON_API void horon_knobs(void (*visit)(const char* name, int horovod, const char* meaning,
                                         void* user),
                           void* user);
/* Judges the variables of that table as horon_init would, but for the names of log levels. `get`
 * gives the value of HORON_<name> or HOROVOD_<name>, or null; null stands for getenv.
 * HORON_INVALID_ARGUMENT: a value makes no sense, and horon_last_error() names the variable. */
HORON_API int horon_check_settings(const char* (*get)(const char* variable));

#ifdef __cplusplus
}
#endif

#endif /* HORON_HORON_H_ */
