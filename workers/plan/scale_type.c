/* SPDX-License-Identifier: Apache-2.0
 * Instance types as clusters. Known devices have their measured curves (scale_cluster.c); what is
 * here are the others, of which only the catalogue's figures and the kind of their links count. */
#include "workers/plan/scale_type.h"

#include <string.h>

static const double GB = 1e9, MIB = 1024.0 * 1024.0, US = 1e-6;

enum { MACHINE_DEVICES = 8, SLICES = 2 };

static const struct {
	const char *name;
	enum scale_kind kind;
} known[] = {
	{ "h100-80gb", SCALE_H100 },
	{ "a100-80gb", SCALE_A100_80 },
	{ "a100-40gb", SCALE_A100_40 },
};

/* Rates of a device by data sheet, links: a V100's NVLink 2; slices of one device and boards
 * without NVLink meet in the machine's memory over PCIe (K). Between machines 100 or 10 Gbit. */
static const struct plain {
	const char *name;
	double fp32_flops, tf32_flops, half_flops; /* without TF32: fp32's */
	double memory_bytes, memory_bytes_s, inside_bytes_s, between_bytes_s;
	int machine_devices;
} plain[] = {
	{ "a100-slice", 7.5e12, 60.6e12, 121e12, 20.9e9, 777e9, 16e9, 12e9, SLICES },
	{ "v100-32gb", 15.7e12, 15.7e12, 125e12, 34e9, 900e9, 120e9, 12e9, MACHINE_DEVICES },
	{ "rtx-4090", 82.6e12, 82.6e12, 165e12, 25e9, 1008e9, 12e9, 1.2e9, MACHINE_DEVICES },
	{ "rtx-3090", 35.6e12, 35.6e12, 71e12, 25e9, 936e9, 12e9, 1.2e9, MACHINE_DEVICES },
};

/* A core: the rate of the catalogue, half precision no faster; ranks of one machine meet in shared
 * memory, others over TCP, both as measured (docs/performance.md, several ranks). */
static const struct plain core = { "cpu-dev", 50e9, 50e9, 50e9, 2147483648.0, 10e9, 9e9, 0.97e9,
	MACHINE_DEVICES };

static void set_link(struct scale_link *l, double bytes_s, double start_s, double hop_s)
{
	*l = (struct scale_link){ .point = { { MIB, bytes_s / 4 }, { 64 * MIB, bytes_s } },
		.point_count = 2,
		.start_s = start_s,
		.hop_s = hop_s,
		.fade = 0.937 };
}

static void plain_cluster(const struct plain *p, int devices, struct scale_cluster *ret)
{
	bool cpu = p == &core;
	*ret = (struct scale_cluster){ .devices = devices,
		.machine_devices = p->machine_devices,
		.device = { .name = p->name,
			.flops = { p->fp32_flops, p->tf32_flops, p->half_flops, p->half_flops },
			.product_share = { 0.8, 0.8, 0.8, 0.8 },
			.attention_share = 0.5,
			.sustained = 0.7,
			.product_s = (cpu ? 2 : 6) * US,
			.stream_s = (cpu ? 1 : 3) * US,
			.memory_bytes_s = p->memory_bytes_s,
			.memory_share = 0.9,
			.memory_bytes = p->memory_bytes,
			.context_bytes = cpu ? 0 : GB,
			.collective_share = 0.4 },
		.overlap = { .gradients = true, .weights = true, .pipeline = true, .gradient_bytes = 4 } };
	set_link(&ret->inside, p->inside_bytes_s, (cpu ? 20 : 10) * US, (cpu ? 10 : 5) * US);
	set_link(&ret->between, p->between_bytes_s, (cpu ? 100 : 10) * US, (cpu ? 50 : 14) * US);
}

static bool named_cluster(const char *name, int devices, struct scale_cluster *ret)
{
	for (size_t i = 0; i < ARRAY_LEN(known); i++)
		if (strcmp(known[i].name, name) == 0) {
			scale_cluster_known(known[i].kind, devices, ret);
			return true;
		}
	for (size_t i = 0; i < ARRAY_LEN(plain); i++)
		if (strcmp(plain[i].name, name) == 0) {
			plain_cluster(&plain[i], devices, ret);
			return true;
		}
	plain_cluster(&core, devices, ret);
	return strcmp(core.name, name) == 0;
}

/* Known devices keep their peaks, which the measured shares are of. */
void scale_type_cluster(const struct scale_type *t, int devices, struct scale_cluster *ret)
{
	bool curves = false;
	struct scale_cluster c;
	bool named = named_cluster(t->name, devices, &c);
	for (size_t i = 0; i < ARRAY_LEN(known); i++)
		curves = curves || strcmp(known[i].name, t->name) == 0;
	if (t->memory_bytes > 0)
		c.device.memory_bytes = t->memory_bytes;
	else if (!named)
		c.device.memory_bytes = 1e18;
	if (t->memory_bytes_s > 0)
		c.device.memory_bytes_s = t->memory_bytes_s;
	if (!curves && t->fp32_flops > 0)
		c.device.flops[SCALE_FP32] = t->fp32_flops;
	if (!curves && (t->tf32_flops > 0 || t->fp32_flops > 0))
		c.device.flops[SCALE_TF32] = t->tf32_flops > 0 ? t->tf32_flops : t->fp32_flops;
	if (!curves && (t->half_flops > 0 || t->fp32_flops > 0))
		c.device.flops[SCALE_BF16] = c.device.flops[SCALE_FP8] =
			t->half_flops > 0 ? t->half_flops : t->fp32_flops;
	if (t->machine_devices > 0)
		c.machine_devices = t->machine_devices;
	*ret = c;
}
