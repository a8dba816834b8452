/* packjit's C interface: packed Mamba operators on a GPU or on the CPU. C11 and C++; needs no other header.
 *
 * Functions that can fail give a packjit_status; packjit_last_error() then has the words. Nothing throws. After a
 * failure every handle is as it was before the call, and outputs of the call are unspecified.
 *
 * Structs begin with struct_size: set it to sizeof the struct, and every member that you do not set to 0, which always
 * means "none" or "the default". So a program that was built with an older header works with a newer library.
 *
 * Handles are created and released by the caller. Releasing NULL does nothing. A device must outlive everything that
 * was made with it. Which threads may use a handle stands at each kind. docs/embedding.md has all of it on one page. */
#ifndef PACKJIT_PACKJIT_H
#define PACKJIT_PACKJIT_H

#include <stddef.h>
#include <stdint.h>

#if defined(__GNUC__)
#define PACKJIT_API __attribute__((visibility("default")))
#else
#define PACKJIT_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* --- errors ------------------------------------------------------------------------------- */

typedef int32_t packjit_status;
enum {
  PACKJIT_OK = 0,
  PACKJIT_BAD_ARGUMENT = 1,            /* the message names what was given and what was expected */
  PACKJIT_ENVIRONMENT = 2,             /* the machine lacks something: driver, GPU, NVRTC, host compiler */
  PACKJIT_CHECK_FAILED = 3,            /* a wrong result was found */
  PACKJIT_INTERNAL = 4,                /* a fault of packjit: please report it with the message */
  PACKJIT_NOT_PREPARED_IN_CAPTURE = 5, /* needs what a stream capture cannot hold; the capture is still valid */
  PACKJIT_OUT_OF_MEMORY = 6,           /* of the GPU or of the host */
  PACKJIT_DRIVER_ERROR = 7             /* the CUDA driver refused a call; an earlier kernel may have failed */
};

/* "bad_argument"; "unknown" for values that are none. */
PACKJIT_API const char* packjit_status_name(packjit_status status);
/* What went wrong in the last call on this thread that failed: what was attempted, what was found, what to do. Valid
 * until the next failure on this thread; "" where there was none. */
PACKJIT_API const char* packjit_last_error(void);
/* The library's version, "0.1.0". */
PACKJIT_API const char* packjit_version(void);

/* --- devices ------------------------------------------------------------------------------- */

/* Where operators run. Any thread may use it, several at once. Opening one is the first moment at which packjit calls
 * the CUDA driver, and host execution calls none. */
typedef struct packjit_device packjit_device;

enum {
  PACKJIT_AUTO = 0,    /* the GPU `ordinal` where there is a GPU, otherwise host execution */
  PACKJIT_GPU = 1,     /* the primary context of GPU `ordinal`, which CUDA's runtime and PyTorch use */
  PACKJIT_CURRENT = 2, /* whatever CUDA context is current on the thread that calls, of any GPU */
  PACKJIT_HOST = 3     /* the CPU, for checks; needs a C++ compiler at run time and is slow. Streams are ignored */
};
typedef struct {
  size_t struct_size;
  int32_t kind;    /* PACKJIT_AUTO... */
  int32_t ordinal; /* as the driver numbers the GPUs that it shows */
} packjit_device_options;

PACKJIT_API packjit_status packjit_device_open(const packjit_device_options* options, packjit_device** device);
/* Waits for preparations that are under way. Everything made with the device must have been released, and everything
 * launched must have ended. Kernels in borrowed contexts (PACKJIT_CURRENT) are unloaded where their context is current,
 * and otherwise with their context. */
PACKJIT_API void packjit_device_release(packjit_device* device);

typedef struct {
  size_t struct_size;
  int32_t is_host;
  int32_t multiprocessors;
  int64_t memory_bytes;
  char arch[16];  /* "sm_90", "host" */
  char name[128]; /* a label */
} packjit_device_info;
/* Fills `info`. One that is longer than this library's struct keeps the rest; a shorter one is refused. */
PACKJIT_API packjit_status packjit_device_get_info(packjit_device* device, packjit_device_info* info);

/* --- tensors ------------------------------------------------------------------------------- */

enum {
  PACKJIT_FP32 = 1,
  PACKJIT_FP16 = 2,
  PACKJIT_BF16 = 3,
  PACKJIT_INT16 = 4, /* boundaries only, as all integers */
  PACKJIT_UINT16 = 5,
  PACKJIT_INT32 = 6,
  PACKJIT_INT64 = 7,
  PACKJIT_COMPLEX64 = 8 /* two fp32, the real part first; only with packjit_operator_options.complex_A */
};

/* Memory that the caller owns: of the device, or of the host where this says so. Strides count elements and may be
 * anything; those of dimensions of size 1 have no meaning. Beyond the element's own, no alignment is asked for, but
 * `checkpoints` begin at a multiple of 16 bytes. What a call writes lies apart from all else that it reads or writes,
 * and each of its elements from the others: an expanded tensor, of stride 0, is no output. */
typedef struct {
  size_t struct_size;
  void* data;
  int32_t dtype; /* PACKJIT_FP32... */
  int32_t rank;  /* dimensions, 1 to 4 */
  int64_t shape[4];
  int64_t stride[4];
} packjit_tensor;

/* --- boundaries ------------------------------------------------------------------------------- */

enum {                               /* forms; docs/design.md, section 2, has their rules */
       PACKJIT_POSITION_INDICES = 1, /* (batch, seqlen): 0, 1, 2... anew in each sequence; negative is padding */
       PACKJIT_SEQ_IDX = 2,          /* (batch, seqlen): equal neighbours are one sequence; negative is padding */
       PACKJIT_CU_SEQLENS = 3,       /* (n_sequences + 1): offsets into the flattened rows */
       PACKJIT_ROWS = 4              /* each row is one sequence; no tensor */
};
enum { /* how a map tells a token's place; the scan's backward takes positions only */
       PACKJIT_POSITIONS = 0,
       PACKJIT_POSITIONS16 = 1,
       PACKJIT_BITS = 2,
       PACKJIT_OFFSETS = 3
};

/* Where the sequences of one batch begin and end, in device memory; shared by all layers. Many threads may run
 * operators with it at once, while none builds, checks or releases it. */
typedef struct packjit_map packjit_map;

typedef struct {
  size_t struct_size;
  int32_t form;    /* PACKJIT_POSITION_INDICES... */
  int32_t storage; /* PACKJIT_POSITIONS... */
  int64_t batch, seqlen;
  /* For maps built on the device: room, needed. For others: both 0, or limits that boundaries must keep and by which
   * kernels are chosen, so that they are the same in every batch. */
  int64_t max_sequences, max_seqlen;
} packjit_map_options;

/* From boundaries in host memory (NULL for rows). They are read before the call returns; the copy to the device is
 * ordered on `stream`. PACKJIT_BAD_ARGUMENT names the token that breaks a rule. */
PACKJIT_API packjit_status packjit_map_from_host(packjit_device* device, void* stream,
                                                 const packjit_map_options* options, const packjit_tensor* boundaries,
                                                 packjit_map** map);
/* Room for a map that the device builds, from boundaries of dtype `index_dtype`. Compiles, loads and takes memory.
 * There are max_sequences slots, unused ones are empty sequences. */
PACKJIT_API packjit_status packjit_map_create(packjit_device* device, void* stream, const packjit_map_options* options,
                                              int32_t index_dtype, packjit_map** map);
/* Launches the building from dense boundaries in device memory (NULL for rows). Waits for nothing and can be captured.
 */
PACKJIT_API packjit_status packjit_map_build(packjit_map* map, void* stream, const packjit_tensor* boundaries);
/* Waits for `stream`. PACKJIT_BAD_ARGUMENT where boundaries broke a rule since the last check, for the first time they
 * did. Until then every row counts as padding: outputs and gradients are zero. A map that was never built is refused,
 * here and by operators. */
PACKJIT_API packjit_status packjit_map_check(packjit_map* map, void* stream);
typedef struct {
  size_t struct_size;
  int64_t batch, seqlen;
  int64_t n_sequences;               /* slots: how many states there are */
  int64_t max_sequences, max_seqlen; /* the limits, or where none were given the numbers of the batch */
} packjit_map_info;
PACKJIT_API packjit_status packjit_map_get_info(const packjit_map* map, packjit_map_info* info);
/* What uses it must have ended. With PACKJIT_CURRENT, the context that it was made in should be current. A capture
 * goes on. Memory of a map that was used in one stays until the device is released, since graphs read it later. */
PACKJIT_API void packjit_map_release(packjit_map* map);

/* --- operators ------------------------------------------------------------------------------- */

enum { PACKJIT_CONV1D_PACK = 1, PACKJIT_SSM_PACK = 2 };
enum { PACKJIT_DEFAULT = 0, PACKJIT_OFF = 1, PACKJIT_ON = 2 };
enum { PACKJIT_FORWARD = 1, PACKJIT_BACKWARD = 2 };

/* One operator with its options, forward and backward. Any thread may use it, several at once, each with a stream of
 * its own; layers with the same options may share one. */
typedef struct packjit_operator packjit_operator;

/* Switches are PACKJIT_DEFAULT, PACKJIT_OFF or PACKJIT_ON. What the operator does not have must be 0. */
typedef struct {
  size_t struct_size;
  int32_t op;             /* PACKJIT_CONV1D_PACK or PACKJIT_SSM_PACK */
  int32_t dtype;          /* of activations; default bf16 */
  int32_t conv_width;     /* convolution: 1 to 16, default 4 */
  int32_t bias;           /* convolution: default on */
  int32_t silu;           /* convolution: default on */
  int32_t map_storage;    /* convolution: PACKJIT_POSITIONS... */
  int32_t d_state;        /* scan: 1 to 512, default 16 */
  int32_t softplus;       /* scan: default on */
  int32_t D;              /* scan: default on */
  int32_t z;              /* scan: default on */
  int32_t delta_bias;     /* scan: default on */
  int32_t checkpoints;    /* scan: the forward stores states for the backward; default off */
  int32_t initial_states; /* default off */
  int32_t final_states;   /* the forward gives them, the backward takes their gradient; default off */
  /* These three are written for correctness, not for speed, and go without checkpoints. */
  int32_t constant_B; /* scan: B is (dim, d_state), fp32, the same for all tokens; so is dB; default off */
  int32_t constant_C; /* scan: the same for C */
  int32_t complex_A;  /* scan: A, states, constant B and C and their gradients are complex64; B and C of tokens stay in the
                       * dtype, (batch, seqlen, groups, 2 * d_state), real and imaginary parts in turn; y sums
                       * 2 * Re(C * h); gradients are dL/d(re) + i * dL/d(im); default off */
  int32_t fp32_weights; /* convolution: weight and bias are fp32, whatever the dtype; default off */
} packjit_operator_options;

PACKJIT_API packjit_status packjit_operator_create(packjit_device* device, const packjit_operator_options* options,
                                                   packjit_operator** op);
PACKJIT_API void packjit_operator_release(packjit_operator* op);

enum { PACKJIT_TOKEN_MAJOR = 0, PACKJIT_CHANNEL_MAJOR = 1, PACKJIT_STRIDED = 2 };
/* What calls will look like. Kernels are for tensors that begin at multiples of 16 bytes and are dense in this layout
 * (strided: any). Other tensors are taken too, with a kernel that their first call prepares. */
typedef struct {
  size_t struct_size;
  int64_t batch, seqlen, dim;
  int64_t groups;                    /* of B and C; 0 is 1 */
  int64_t max_sequences, max_seqlen; /* as in the maps that will come: kernels are chosen by them */
  int32_t layout;                    /* of the activations: PACKJIT_TOKEN_MAJOR... */
  int32_t caller_workspace;          /* 1: calls will bring their own, so that preparing takes none */
} packjit_shape;

/* Generates, compiles and loads what `directions` (PACKJIT_FORWARD, PACKJIT_BACKWARD or both, added) need for such
 * calls, and takes the library's workspace for `stream` where they bring none. Afterwards such calls can be captured,
 * and cost little. */
PACKJIT_API packjit_status packjit_operator_prepare(packjit_operator* op, void* stream, int32_t directions,
                                                    const packjit_shape* shape);

/* A preparation on a worker thread of the library. One thread may use the handle at a time. */
typedef struct packjit_task packjit_task;
PACKJIT_API packjit_status packjit_operator_prepare_start(packjit_operator* op, void* stream, int32_t directions,
                                                          const packjit_shape* shape, packjit_task** task);
/* 1 when it has ended, well or not, or goes on in the process that this one was forked from; 0 while it is under way. */
PACKJIT_API int32_t packjit_task_ready(const packjit_task* task);
/* Waits, and gives what packjit_operator_prepare would. */
PACKJIT_API packjit_status packjit_task_wait(packjit_task* task);
/* Does not wait. The operator must outlive the preparation, also when its handle is gone. */
PACKJIT_API void packjit_task_release(packjit_task* task);

/* The scratch memory of such calls in bytes, at most. */
PACKJIT_API packjit_status packjit_operator_workspace_bytes(packjit_operator* op, int32_t direction,
                                                            const packjit_shape* shape, size_t* bytes);

/* The shape and dtype that a tensor of the operator has in such calls, dense in the shape's layout; data is NULL.
 * States have max_sequences slots. PACKJIT_BAD_ARGUMENT for names that the operator, with its options, does not have.
 */
PACKJIT_API packjit_status packjit_operator_describe(packjit_operator* op, int32_t direction,
                                                     const packjit_shape* shape, const char* name,
                                                     packjit_tensor* tensor);

/* Tokens between two checkpoints of the scan, for callers that make `checkpoints` before there is an operator:
 * (batch * seqlen / this + 1, dim, d_state). 0 where the scan has no such d_state. Calls no driver. */
PACKJIT_API int32_t packjit_checkpoint_interval(int32_t d_state);

/* Scratch memory of the caller, of the device, at a multiple of 256 bytes. Calls that follow one another on a stream
 * may share it. */
typedef struct {
  size_t struct_size;
  void* data;
  size_t bytes;
} packjit_workspace;

/* Tensors by name, of shapes (batch, seqlen, dim) unless another one stands beside it. NULL where the options have
 * none. */
typedef struct {
  size_t struct_size;
  const packjit_tensor* x;
  const packjit_tensor* weight;         /* (dim, conv_width); with fp32_weights fp32 */
  const packjit_tensor* bias;           /* (dim); as weight */
  const packjit_tensor* initial_states; /* (n_sequences, dim, conv_width - 1) */
  const packjit_tensor* out;            /* written */
  const packjit_tensor* final_states;   /* written; as initial_states */
} packjit_conv1d_forward_tensors;

typedef struct {
  size_t struct_size;
  const packjit_tensor* x;
  const packjit_tensor* weight;         /* (dim, conv_width); with fp32_weights fp32 */
  const packjit_tensor* bias;           /* (dim); as weight */
  const packjit_tensor* initial_states; /* (n_sequences, dim, conv_width - 1) */
  const packjit_tensor* dout;
  const packjit_tensor* dfinal_states; /* as initial_states */
  const packjit_tensor* dx;            /* written, as all that follow */
  const packjit_tensor* dweight;       /* fp32 */
  const packjit_tensor* dbias;         /* fp32 */
  const packjit_tensor* dinitial_states;
} packjit_conv1d_backward_tensors;

typedef struct {
  size_t struct_size;
  const packjit_tensor* u;
  const packjit_tensor* delta;
  const packjit_tensor* A; /* (dim, d_state), fp32 */
  const packjit_tensor* B; /* (batch, seqlen, groups, d_state); constant_B and complex_A say what else it can be */
  const packjit_tensor* C; /* the same, with constant_C */
  const packjit_tensor* D; /* (dim), fp32 */
  const packjit_tensor* z;
  const packjit_tensor* delta_bias;     /* (dim), fp32 */
  const packjit_tensor* initial_states; /* (n_sequences, dim, d_state), fp32 */
  const packjit_tensor* out;            /* written, as all that follow */
  const packjit_tensor* final_states;   /* (n_sequences, dim, d_state), fp32 */
  const packjit_tensor* checkpoints;    /* packjit_operator_describe() has its shape */
} packjit_ssm_forward_tensors;

typedef struct {
  size_t struct_size;
  const packjit_tensor* u;
  const packjit_tensor* delta;
  const packjit_tensor* A;
  const packjit_tensor* B;
  const packjit_tensor* C;
  const packjit_tensor* D;
  const packjit_tensor* z;
  const packjit_tensor* delta_bias;
  const packjit_tensor* initial_states;
  const packjit_tensor* dout;
  const packjit_tensor* dfinal_states;
  const packjit_tensor* checkpoints;
  const packjit_tensor* du; /* written, as all that follow; each has the shape of what it is the gradient of */
  const packjit_tensor* ddelta;
  const packjit_tensor* dA;
  const packjit_tensor* dB;
  const packjit_tensor* dC;
  const packjit_tensor* dD;
  const packjit_tensor* dz;
  const packjit_tensor* ddelta_bias;
  const packjit_tensor* dinitial_states;
} packjit_ssm_backward_tensors;

/* Each checks the tensors, prepares what is missing and launches on `stream` (a CUstream; NULL is the default stream)
 * without waiting; host execution is done when the call returns. Outputs are written completely, padding included.
 * An output shares no memory with another tensor of the call. Two that begin at one address are refused; other overlaps
 * are not looked for, since slices of one array lie between each other.
 *
 * `workspace` NULL: the library's own for this stream, which it keeps until the device is released. While the stream is
 * captured nothing can be prepared and no memory taken: PACKJIT_NOT_PREPARED_IN_CAPTURE says so before the stream is
 * touched, and the capture goes on. */
PACKJIT_API packjit_status packjit_conv1d_forward(packjit_operator* op, void* stream, const packjit_map* map,
                                                  const packjit_conv1d_forward_tensors* tensors,
                                                  const packjit_workspace* workspace);
PACKJIT_API packjit_status packjit_conv1d_backward(packjit_operator* op, void* stream, const packjit_map* map,
                                                   const packjit_conv1d_backward_tensors* tensors,
                                                   const packjit_workspace* workspace);
PACKJIT_API packjit_status packjit_ssm_forward(packjit_operator* op, void* stream, const packjit_map* map,
                                               const packjit_ssm_forward_tensors* tensors,
                                               const packjit_workspace* workspace);
PACKJIT_API packjit_status packjit_ssm_backward(packjit_operator* op, void* stream, const packjit_map* map,
                                                const packjit_ssm_backward_tensors* tensors,
                                                const packjit_workspace* workspace);

/* --- calls from Python ------------------------------------------------------------------------------- */

/* One of the four calls above as a function of CPython (METH_FASTCALL of PyMethodDef), for a package that makes many.
 * The interpreter is the one that this process runs: its functions are found by their names, and nothing is linked
 * against it. The caller holds the GIL, which is given back while the call works. `arguments`, Python's objects:
 *
 *   0    the address of a DLPackExchangeAPI, version 1: what the tensors' type has as __dlpack_c_exchange_api__
 *   1    PACKJIT_CONV1D_PACK or PACKJIT_SSM_PACK
 *   2    PACKJIT_FORWARD or PACKJIT_BACKWARD
 *   3    softplus or silu: 0 or 1; the other options are what the tensors say
 *   4    0: a tensor without a dense dimension (more than one element, stride 1) is refused, so that the caller looks
 *        closer: PyTorch's views of the imaginary parts of a conjugate have none, and their numbers are not those in
 *        memory
 *   5    the address of a packjit_map, whose device keeps the operator
 *   6..  the operator's tensors in the order of its struct, None for those that there are not
 *
 * Stream and workspace are of the tensors' library. Gives the packjit_status as a Python integer; NULL where Python has
 * an exception set, or where there is no interpreter. */
PACKJIT_API void* packjit_python_call(void* self, void* const* arguments, int64_t count);

/* --- packing ------------------------------------------------------------------------------- */

/* From the lengths of documents to the steps of one rank: rows of token slots in which every document lies once an
 * epoch, each epoch in another order. docs/packing.md has the methods. Needs no device. Every rank makes a packer of
 * the same documents and options with its own `rank`; they need not talk to each other and have the same number of
 * steps. One thread may use the handle at a time. */
typedef struct packjit_packer packjit_packer;

enum { PACKJIT_LOSS_PER_TOKEN = 0, PACKJIT_LOSS_PER_DOCUMENT = 1 };
/* The last token of a document has no next token to predict. */
enum { PACKJIT_LAST_TOKEN_IS_DROPPED = 0, PACKJIT_LAST_TOKEN_COUNTS = 1 };
/* Documents come to ranks by tokens and longest sequences, or in turn, to see what balancing gains. */
enum { PACKJIT_DIVISION_BALANCED = 0, PACKJIT_DIVISION_ROUND_ROBIN = 1 };

/* Numbers are at least 1 where they are not 0, the default; -1 stands for none where this says so. */
typedef struct {
  size_t struct_size;
  const char* method;  /* "next-fit", "local-greedy", "ffd", "bfd", "length-groups", "balanced"; NULL is local-greedy */
  int64_t pack_length; /* tokens of a row; needed */
  int64_t rows;        /* of a step; default 1. rows * pack_length is below 2^31 */
  int64_t ranks;       /* default 1 */
  int64_t rank;        /* from 0 */
  uint64_t seed;       /* of the epochs' orders */
  int64_t cut;         /* documents longer than this are cut; default pack_length, which is the most */
  int64_t cut_slack;   /* a break counts within so many tokens before the limit; default all of them, -1 none */
  int64_t min_piece;   /* tokens of a piece of a cut document, at least; default 1 */
  int64_t window;      /* local-greedy: documents sorted together; ranks: dealt out together, for each; default 256 */
  int64_t open_packs;  /* local-greedy: rows that stay open between windows; default 16, -1 none */
  int32_t loss_unit;   /* PACKJIT_LOSS_PER_TOKEN... */
  int32_t last_token;  /* PACKJIT_LAST_TOKEN_IS_DROPPED... */
  int32_t division;    /* PACKJIT_DIVISION_BALANCED... */
} packjit_packer_options;

/* Read before the call that takes it returns. */
typedef struct {
  size_t struct_size;
  int64_t count;
  const int64_t* lengths;       /* (count): tokens of each document */
  const int64_t* breaks;        /* where documents may be cut, tokens from their beginnings; NULL: anywhere */
  const int64_t* break_offsets; /* (count + 1): document d has breaks[break_offsets[d]] to [break_offsets[d + 1] - 1] */
} packjit_documents;

/* Plans the first epoch: 10 million documents take some seconds, in every epoch. */
PACKJIT_API packjit_status packjit_packer_create(const packjit_packer_options* options,
                                                 const packjit_documents* documents, packjit_packer** packer);
PACKJIT_API void packjit_packer_release(packjit_packer* packer);

/* Consecutive tokens of one document, which lie in one row. Its index among the step's pieces is its slot: the one that
 * its states have with position_indices and seq_idx. */
typedef struct {
  int64_t document;  /* its index */
  int64_t offset;    /* of its first token in the document */
  int64_t length;    /* tokens, at least 1 */
  int64_t row;       /* of the step */
  int64_t start;     /* of its first token in the row */
  int64_t more;      /* 1: a later step of this epoch has the document's next piece and needs the final states */
  int64_t from_step; /* its initial states are the final ones of this step of the epoch... */
  int64_t from_slot; /* ...and this slot; both -1 where the document begins, and its states are zero */
} packjit_piece;

/* The memory is the packer's, and valid until the next call with it. Arrays of tokens are (rows, pack_length), and
 * padding is -1 in all of them but loss_weights; a step may be padding throughout, where other ranks have more. */
typedef struct {
  size_t struct_size;
  int64_t epoch;
  int64_t step;  /* within the epoch, from 0 */
  int64_t steps; /* of the epoch */
  int64_t rows, pack_length;
  int64_t tokens;       /* that are not padding */
  int64_t max_seqlen;   /* tokens of the longest piece */
  int64_t n_pieces;     /* their slots come row by row, from the left */
  int64_t n_cu_seqlens; /* numbers in cu_seqlens */
  const packjit_piece* pieces;
  const int32_t* position_indices; /* from 0 in each piece */
  const int32_t* seq_idx;          /* the slot */
  const int64_t* cu_seqlens;       /* the padding of a row is an interval too, so intervals are not slots */
  const int64_t* document_ids;
  const int64_t* document_offsets; /* of each token in its document */
  const float* loss_weights;       /* divide the weighted loss by the weights of all ranks and steps of an update */
} packjit_step;
/* The next step, of the next epoch where this one is done. */
PACKJIT_API packjit_status packjit_packer_next(packjit_packer* packer, packjit_step* step);

/* Where the packer stands between two steps, to keep with a checkpoint of the model. The same for all ranks. */
typedef struct {
  size_t struct_size;
  int64_t epoch;
  int64_t step;         /* steps of the epoch that are done */
  uint64_t fingerprint; /* of the documents, options and number of ranks */
} packjit_packer_position;
PACKJIT_API packjit_status packjit_packer_get_position(const packjit_packer* packer, packjit_packer_position* position);
/* Goes on from a position, as if nothing had happened; with step 0, from the beginning of any epoch.
 * PACKJIT_BAD_ARGUMENT for one of other documents, options or numbers of ranks. Documents that are cut across the
 * position need their states from the checkpoint. */
PACKJIT_API packjit_status packjit_packer_resume(packjit_packer* packer, const packjit_packer_position* position);

typedef struct {
  size_t struct_size;
  int64_t max_sequences; /* pieces of a step: no step of any epoch and rank has more */
  int64_t max_seqlen;    /* the same of the tokens of a piece */
  int64_t steps;         /* of the current epoch */
} packjit_packer_info;
PACKJIT_API packjit_status packjit_packer_get_info(const packjit_packer* packer, packjit_packer_info* info);

/* Of the current epoch and all ranks together. */
typedef struct {
  size_t struct_size;
  int64_t documents, documents_cut, pieces;
  int64_t tokens;                /* that are not padding */
  int64_t slots;                 /* ranks * steps * rows * pack_length */
  double fill_rate;              /* tokens / slots */
  double mean_order_drift;       /* documents moved so many places from their arrival, which each epoch draws anew */
  double mean_handover_distance; /* steps from a piece to the next of its document; 0 where nothing is cut */
  double mean_token_spread;      /* fullest less emptiest rank of a step, as a share of a rank's slots */
  double mean_longest_spread;    /* the same of the longest piece, as a share of the longest */
  int64_t largest_order_drift;
  int64_t largest_handover_distance;
} packjit_packer_statistics;
/* Plans the epoch again, so it takes as long as packjit_packer_create. */
PACKJIT_API packjit_status packjit_packer_get_statistics(const packjit_packer* packer,
                                                         packjit_packer_statistics* statistics);

#ifdef __cplusplus
}
#endif
#endif
