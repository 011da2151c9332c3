/* SPDX-License-Identifier: Apache-2.0
 * What a training step costs on a cluster, without one: memory of a rank, seconds of compute and of
 * every collective, bubbles, tokens per second; and the search for the best mesh. Pure arithmetic
 * on the one-rank plan; reads no clock and no device, same inputs, same answer. Called by
 * bench/scale and, for `parallelism: "auto"`, by scale_choose.c. */
#pragma once

#include "core/base/attr.h"
#include "core/base/err.h"
#include "core/spec/spec.h"

#include <stdbool.h>
#include <stdint.h>

/* Letters below: P parameters, L layers, C width, T tokens of a sequence, V vocabulary, b samples
 * of a micro-batch, m micro-batches of a step and rank, N devices, D devices of a machine; d, t, p
 * the sizes of the data, tensor and pipeline axes, v chunks of layers a stage has (interleaving).
 *
 * Sources are named at each formula: [MAMF] ml-engineering's table of the fastest products
 * measured; [BUS] its all-reduce measurement of 8 H200; [XLA] the products of an H100 measured for
 * XLA's cost model (matmul_interpolator_data.h); [NCCL] the latencies of NCCL's own tuning
 * (tuning.cc, ring, Simple); [RS] reduce-scatters over 4 to 128 machines of H100, nccl#1229; [N21]
 * Narayanan et al. 2021, arXiv 2104.04473; [K22] Korthikanti et al. 2022, arXiv 2205.05198; [Z]
 * Rajbhandari et al. 2020, ZeRO; [MC] Megatron-Core; [FA] FlashAttention 2 and 3.
 * docs/parallelism.md says the same in words, docs/performance.md how far off it is. */

enum {
	SCALE_POINTS_MAX = 8,
	SCALE_COLLECTIVES_MAX = 8,
	SCALE_RUNNERS_MAX = 24,
	SCALE_REASON_MAX = 128,
	SCALE_DEVICES_MAX = 64 * 1024,
};

/* fp16 has bf16's rates. TF32: products, while attention is computed in fp32. FP8: only the
 * products inside layers, not head or attention. */
enum scale_precision { SCALE_FP32, SCALE_TF32, SCALE_BF16, SCALE_FP8, SCALE_PRECISION_COUNT };

struct scale_device {
	const char *name;
	/* The data sheet's dense peak, of which an MFU is a share; what the best product ever measured
	 * [MAMF] and attention's forward pass [FA] reach of it. */
	double flops[SCALE_PRECISION_COUNT];
	double product_share[SCALE_PRECISION_COUNT];
	double attention_share;
	/* What a training run keeps of all these ceilings: the clock under load, products of other
	 * shapes than the best one's, gaps between kernels. Fitted, once a generation of devices. */
	double sustained;
	double product_s;        /* of a product beyond its FLOPs: filling, the last wave [XLA] */
	double stream_s;         /* of any other kernel beyond its bytes */
	double memory_bytes_s;   /* of the data sheet */
	double memory_share;     /* what a kernel that only streams reaches of it */
	double memory_bytes;     /* that a process may have */
	double context_bytes;    /* of those, taken by driver, libraries and their workspaces */
	double collective_share; /* of compute's speed that a hidden collective takes; fitted once */
};

/* Bus bandwidth as nccl-tests count it, by bytes of the whole buffer; rising. Between two points
 * the rate follows the logarithm of the bytes, below the first the time is constant. */
struct scale_point {
	double bytes, bytes_s;
};

struct scale_link {
	struct scale_point point[SCALE_POINTS_MAX];
	int point_count;
	double start_s; /* of any operation */
	double hop_s;   /* of one step of a ring */
	double fade;    /* between machines: what the rate keeps at each doubling of them beyond four */
};

/* What is hidden behind what. Each is a property of an engine, not of hardware. */
struct scale_overlap {
	bool gradients; /* reduction bucket by bucket behind the backward pass */
	bool weights;   /* ZeRO's gathers behind the compute of the layer before */
	bool tensor;    /* tensor parallel's collectives, cut in t pieces, behind their products */
	bool pipeline;  /* activations to the next stage behind the next micro-batch */
	double gradient_bytes; /* of one gradient on the wire: 4, or 2 where it is sent in bf16 */
};

struct scale_cluster {
	struct scale_device device;
	int devices, machine_devices;
	struct scale_link inside;  /* a machine: rate of one device */
	struct scale_link between; /* machines: rate of one device's own adapter */
	struct scale_overlap overlap;
	bool fp8;
};

/* Ranks are numbered tensor first, then data, then pipeline [N21 takeaway 1]: a tensor group lies
 * inside a machine while t is at most D, neighbouring stages in different ones once t d reaches D.
 *
 * zero: 0 every rank has everything; 1 the optimizer's state is split over d; 2 gradients too,
 * reduced in every micro-batch; 3 weights too, gathered layer by layer in both passes. */
struct scale_mesh {
	int data, tensor, pipeline, zero;
	int interleave; /* v; 1 = plain 1F1B */
	int64_t micro_batch;
	enum spec_checkpointing checkpointing;
};

enum scale_memory {
	SCALE_WEIGHTS,
	SCALE_GRADIENTS,
	SCALE_OPTIMIZER,
	SCALE_ACTIVATIONS,
	SCALE_WORKSPACE, /* scratch, gathered weights, the context */
	SCALE_MEMORY_COUNT,
};
const char *scale_memory_word(enum scale_memory kind);

/* One line of the step's communication, of one rank. */
struct scale_collective {
	const char *name;      /* "weights of a layer" */
	const char *operation; /* "all-gather" */
	const char *axis;      /* "data", "tensor", "pipeline" */
	const char *behind;    /* what hides it, "nothing" when it never is */
	double bytes;          /* of the whole buffer of one call */
	double calls;          /* in a step */
	double seconds;        /* of all of them */
	double exposed_s;      /* of those, waited for */
};

struct scale_cost {
	double memory[SCALE_MEMORY_COUNT], memory_bytes; /* of the fullest rank */
	bool fits;
	struct scale_collective collective[SCALE_COLLECTIVES_MAX];
	int collective_count;
	/* The step is the sum of these. */
	double compute_s;    /* all micro-batches of the busiest stage, recomputation included */
	double contention_s; /* what compute loses to collectives that run beside it */
	double tensor_s, data_s, pipeline_s; /* waited for collectives of the axis */
	double bubble_s;
	double optimizer_s;
	double step_s;
	double recompute_s;  /* of compute_s */
	double bubble_share; /* of the step */
	double tokens_s;     /* one device; of families without tokens: samples */
	double flops_s;      /* one device, PLAN_FLOP_CONVENTION */
	double mfu;          /* of the peak of the precision of the layers' products */
	/* The same with 6 P + 12 L C T a token, as most tables count: the whole square of the
	 * attention, P without an input table that is not also the head. */
	double source_flops_s, source_mfu;
};

struct scale_model;

/* Compiles the spec's one-rank plan in its three ways of checkpointing and keeps what the
 * estimate needs. The spec's device_count, micro_batch_size and checkpointing are not read: the
 * mesh has them. Errors are plan_compile's. Free with scale_model_destroy. */
int scale_model_create(
	const struct job_spec *spec, struct scale_model **ret, struct err *err) must_check;
void scale_model_destroy(struct scale_model *m);
void scale_model_destroyp(struct scale_model **m);
int64_t scale_model_parameters(const struct scale_model *m);

/* The cost of one step. INVALID_VALUE when the mesh divides neither the devices nor the model: the
 * message says which. A mesh that does not fit the memory is costed all the same (fits is false).
 */
int scale_estimate(const struct scale_model *m, const struct scale_cluster *c,
	const struct scale_mesh *mesh, struct scale_cost *ret, struct err *err) must_check;

struct scale_choice {
	struct scale_mesh mesh;
	struct scale_cost cost;
	char reason[SCALE_REASON_MAX]; /* of the best: why it leads; of the others: why they lost */
};

/* Best first, then the best of every other pair (tensor, pipeline), those that fit before those
 * that do not. */
struct scale_search {
	struct scale_choice choice[SCALE_RUNNERS_MAX];
	int choice_count;
	int64_t tried;
};

/* Every mesh of all of the cluster's devices that divides heads, key-value heads, layers and batch.
 * What is not better by half a percent loses to what is simpler: fewer stages, then a smaller
 * tensor axis, then less ZeRO, less interleaving, less recomputation, a larger micro-batch.
 * PLAN_TOO_LARGE when none fits (the message names the smallest need); ret is written then too. */
int scale_search(const struct scale_model *m, const struct scale_cluster *c,
	struct scale_search *ret, struct err *err) must_check;

/* What a search must keep to. */
struct scale_bounds {
	int64_t micro_batch, micro_batch_most; /* the one given, the largest allowed; 0 = any */
	bool checkpointing_given;
	enum spec_checkpointing checkpointing;
	/* Asked for one mesh of each pair (tensor, pipeline), and for each before it leads, unless it
	 * is estimated far too large: the bytes that its fullest rank really needs, in place of the
	 * estimate's. PLAN_TOO_LARGE leaves the mesh out; INVALID_VALUE also all that
	 * differ from it by checkpointing or micro-batch only; any other code ends the search. */
	int (*measure)(void *ctx, const struct scale_mesh *mesh, double *ret_bytes, struct err *err);
	void *ctx;
};
int scale_search_within(const struct scale_model *m, const struct scale_cluster *c,
	const struct scale_bounds *b, struct scale_search *ret, struct err *err) must_check;

/* Known clusters, with all overlaps but the tensor's, fp32 gradients, no fp8. */
enum scale_kind { SCALE_A100_40, SCALE_A100_80, SCALE_H100, SCALE_H100_500W, SCALE_H200 };
void scale_cluster_known(enum scale_kind kind, int devices, struct scale_cluster *ret);

/* Time of one collective over `ranks` of which `local` are in each machine. The parts are tested on
 * their own. */
enum scale_operation { SCALE_ALL_REDUCE, SCALE_ALL_GATHER, SCALE_REDUCE_SCATTER };
double scale_link_rate(const struct scale_link *l, double bytes);
double scale_collective_s(
	const struct scale_cluster *c, enum scale_operation op, double bytes, int ranks, int local);
double scale_send_s(const struct scale_cluster *c, double bytes, bool same_machine);
/* Seconds of a product of the given FLOPs in `launches` calls; bytes as read and written once. */
double scale_product_s(const struct scale_device *d, enum scale_precision precision, double flops,
	double bytes, double launches);
