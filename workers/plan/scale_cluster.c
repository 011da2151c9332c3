/* SPDX-License-Identifier: Apache-2.0
 * Clusters that are known, and the time of one collective on a cluster. Every figure has its source
 * beside it; (K) marks what is general knowledge and was not read again. Called by the estimate. */
#include "workers/plan/scale_private.h"

#include <math.h>

static const double GB = 1e9, MIB = 1024.0 * 1024.0, US = 1e-6;

/* Logarithmic between the points. Below the first a call takes as long as at the first: the rate
 * falls with the bytes. */
double scale_link_rate(const struct scale_link *l, double bytes)
{
	const struct scale_point *p = l->point;
	if (bytes <= p[0].bytes)
		return p[0].bytes_s * bytes / p[0].bytes;
	for (int i = 1; i < l->point_count; i++)
		if (bytes < p[i].bytes) {
			double x = log(bytes / p[i - 1].bytes) / log(p[i].bytes / p[i - 1].bytes);
			return p[i - 1].bytes_s + x * (p[i].bytes_s - p[i - 1].bytes_s);
		}
	return p[l->point_count - 1].bytes_s;
}

/* Measured rates fall by the same share at each doubling [RS]: 360 GB/s over 4 machines, 260 over
 * 128. Latency, which is counted on its own, is in that measurement too, so that large groups come
 * out rather slow. */
static double between_rate(const struct scale_cluster *c, double bytes, double machines)
{
	double doublings = log2(machines / 4);
	double rate = scale_link_rate(&c->between, bytes);
	return doublings > 0 ? rate * pow(c->between.fade, doublings) : rate;
}

/* n ranks, g in each of n / g machines. A ring moves (n-1)/n of the buffer through every rank, an
 * all-reduce twice as much (nccl-tests, PERFORMANCE.md: the factors of bus bandwidth). Between
 * machines the g ranks of each share the buffer over their g adapters; inside and between run at
 * the same time, so the slower counts. Latency [NCCL]: n/g - 1 steps between machines and n - n/g
 * inside for a ring; for an all-reduce also a tree, up and down, of which the faster is taken. */
double scale_collective_s(
	const struct scale_cluster *c, enum scale_operation op, double bytes, int ranks, int local)
{
	if (ranks < 2 || bytes <= 0)
		return 0;
	double n = ranks, machines = n / local, times = op == SCALE_ALL_REDUCE ? 2 : 1;
	double moved = times * (n - 1) / n * bytes;
	double inside_s = local > 1 ? moved / scale_link_rate(&c->inside, bytes) : 0;
	if (machines <= 1)
		return inside_s;
	double between_s = moved / (local * between_rate(c, bytes / local, machines));
	double ring = times * ((machines - 1) * c->between.hop_s + (n - machines) * c->inside.hop_s);
	double latency = ring;
	if (op == SCALE_ALL_REDUCE) {
		double tree = 2 * (ceil(log2(machines)) * c->between.hop_s + (local - 1) * c->inside.hop_s);
		latency = fmin(ring, tree);
	}
	return fmax(inside_s, between_s) + latency + c->between.start_s;
}

double scale_send_s(const struct scale_cluster *c, double bytes, bool same_machine)
{
	const struct scale_link *l = same_machine ? &c->inside : &c->between;
	return l->start_s + l->hop_s + bytes / l->point[l->point_count - 1].bytes_s;
}

/* Peaks: data sheets, dense. Shares: [MAMF] bf16 794.5 and fp8 1,403 of an H100, 828.6 and 1,535 of
 * a GH200 (the H200's chip and memory), 271 of an A100; fp32 and tf32 without a measurement (K).
 * Attention [FA]: FlashAttention 3 reaches 740 of 989 on an H100, FlashAttention 2 50 to 73 % of an
 * A100's 312. Memory: data sheets; the 500 W board as torchtitan describes it. */
static const struct scale_device devices[] = {
	[SCALE_A100_40] = { .name = "A100 40 GB",
		.flops = { 19.5e12, 156e12, 312e12, 312e12 },
		.product_share = { 0.8, 0.8, 0.869, 0.869 },
		.attention_share = 0.615,
		.memory_bytes_s = 1555e9,
		.memory_bytes = 40e9 },
	[SCALE_A100_80] = { .name = "A100 80 GB",
		.flops = { 19.5e12, 156e12, 312e12, 312e12 },
		.product_share = { 0.8, 0.8, 0.869, 0.869 },
		.attention_share = 0.615,
		.memory_bytes_s = 2039e9,
		.memory_bytes = 80e9 },
	[SCALE_H100] = { .name = "H100 80 GB",
		.flops = { 67e12, 494e12, 989e12, 1979e12 },
		.product_share = { 0.8, 0.8, 0.803, 0.709 },
		.attention_share = 0.75,
		.memory_bytes_s = 3350e9,
		.memory_bytes = 80e9 },
	[SCALE_H100_500W] = { .name = "H100 96 GB, 500 W",
		.flops = { 67e12, 494e12, 989e12, 1979e12 },
		.product_share = { 0.8, 0.8, 0.803, 0.709 },
		.attention_share = 0.75,
		.memory_bytes_s = 2400e9,
		.memory_bytes = 96e9 },
	[SCALE_H200] = { .name = "H200 141 GB",
		.flops = { 67e12, 494e12, 989e12, 1979e12 },
		.product_share = { 0.8, 0.8, 0.838, 0.776 },
		.attention_share = 0.75,
		.memory_bytes_s = 4800e9,
		.memory_bytes = 141e9 },
};

/* The constants that are fitted, and to which run (docs/performance.md):
 *	sustained, A100    FlashAttention's training of 1.3B on 8 A100
 *	sustained, H100    llm.c's of 1,558M on 8 H100; the H200 has the same chip and power
 *	collective_share   llm-foundry's of 13B on 8 A100
 * A board held at 500 of 700 W is slower by the cube root, as power goes with clock times voltage
 * squared. product_s: what is left of XLA's bf16 products of an H100 [XLA] after their FLOPs at the
 * [MAMF] rate is 3 to 9 us; with 6 those of 17 GFLOP and more are met within 10 %. stream_s and
 * memory_share (K); context within the 0.5 to 2 GB of ml-engineering. */
static struct scale_device device(enum scale_kind kind)
{
	static const double sustained_a100 = 0.776, sustained_h100 = 0.64;
	static const double watts_full = 700, watts_capped = 500;
	struct scale_device d = devices[kind];
	d.product_s = 6 * US;
	d.stream_s = 3 * US;
	d.memory_share = 0.9;
	d.context_bytes = 1e9;
	d.collective_share = 0.4;
	d.sustained = sustained_a100;
	if (kind == SCALE_H100 || kind == SCALE_H200)
		d.sustained = sustained_h100;
	else if (kind == SCALE_H100_500W)
		d.sustained = sustained_h100 * cbrt(watts_capped / watts_full);
	return d;
}

/* Inside: NVLink 4 as measured [BUS]; NVLink 3 (K). Between: one adapter a device, of which NDR 400
 * gives 46 to 48 GB/s (nccl-tests#290), HDR 200 or 200 Gb RoCE half of that. Latencies [NCCL]. */
void scale_cluster_known(enum scale_kind kind, int count, struct scale_cluster *ret)
{
	bool ampere = kind == SCALE_A100_40 || kind == SCALE_A100_80;
	*ret = (struct scale_cluster){ .device = device(kind),
		.devices = count,
		.machine_devices = 8,
		.inside = { .point = { { MIB, 40 * GB }, { 16 * MIB, 220 * GB }, { 64 * MIB, 347 * GB },
						{ 512 * MIB, 450 * GB }, { 16384 * MIB, 482 * GB } },
			.point_count = 5,
			.start_s = 8.4 * US,
			.hop_s = 3.4 * US },
		.between = { .point = { { 1, 47 * GB } },
			.point_count = 1,
			.start_s = 8.4 * US,
			.hop_s = 14 * US,
			.fade = 0.937 },
		.overlap = { .gradients = true, .weights = true, .pipeline = true, .gradient_bytes = 4 } };
	if (!ampere)
		return;
	const struct scale_point nvlink_3[] = { { MIB, 30 * GB }, { 16 * MIB, 140 * GB },
		{ 64 * MIB, 190 * GB }, { 512 * MIB, 225 * GB }, { 16384 * MIB, 235 * GB } };
	for (int i = 0; i < ret->inside.point_count; i++)
		ret->inside.point[i] = nvlink_3[i];
	ret->between.point[0].bytes_s = 23.5 * GB;
}
