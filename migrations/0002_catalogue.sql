-- SPDX-License-Identifier: Apache-2.0
-- The catalogue: what a job can ask for and what a device-hour of it costs. Figures are the makers' dense peaks
-- (no structured sparsity; half precision accumulated in fp32), memory is what a process can see at most. A quote uses
-- the rates that an agent measured; these are the ceiling. docs/billing.md says how the prices were chosen.

insert into instance_types (name, description, kind, memory_bytes, bandwidth_bytes_per_s, tflops, regions, sort_order)
values
	('h100-80gb', 'NVIDIA H100 SXM, 80 GB HBM3', 'gpu', 85520809984, 3350000000000,
		'{"fp64": 34.0, "fp32": 66.9, "tf32": 494.7, "bf16": 989.4, "fp16": 989.4, "fp8": 1978.9}',
		'{us-east-1,us-west-2,us-central-1,eu-west-1}', 10),
	('a100-80gb', 'NVIDIA A100 SXM, 80 GB HBM2e', 'gpu', 85899345920, 2039000000000,
		'{"fp64": 9.7, "fp32": 19.5, "tf32": 156.0, "bf16": 312.0, "fp16": 312.0}',
		'{us-east-1,us-east-2,us-west-2,us-central-1,eu-west-1,eu-central-1,ap-southeast-1}', 20),
	('a100-40gb', 'NVIDIA A100 SXM, 40 GB HBM2', 'gpu', 42949672960, 1555000000000,
		'{"fp64": 9.7, "fp32": 19.5, "tf32": 156.0, "bf16": 312.0, "fp16": 312.0}',
		'{us-east-1,us-east-2,us-west-2,us-central-1,eu-west-1,eu-central-1,ap-southeast-1}', 30),
	('a100-slice', 'MIG slice 3g.20gb of an NVIDIA A100 40 GB: 42 of 108 multiprocessors, half of the memory', 'slice',
		20937965568, 777500000000,
		'{"fp64": 3.7, "fp32": 7.5, "tf32": 60.6, "bf16": 121.3, "fp16": 121.3}',
		'{us-east-1,us-west-2,eu-west-1}', 40),
	('v100-32gb', 'NVIDIA V100 SXM2, 32 GB HBM2', 'gpu', 34359738368, 900000000000,
		'{"fp64": 7.8, "fp32": 15.7, "fp16": 125.0}',
		'{us-east-1,us-central-1,eu-central-1}', 50),
	('rtx-4090', 'NVIDIA GeForce RTX 4090, 24 GB GDDR6X', 'gpu', 25757220864, 1008000000000,
		'{"fp64": 1.2, "fp32": 82.6, "tf32": 82.6, "bf16": 165.2, "fp16": 165.2, "fp8": 330.3}',
		'{us-east-2,us-west-1,eu-central-1}', 60),
	('rtx-3090', 'NVIDIA GeForce RTX 3090, 24 GB GDDR6X', 'gpu', 25769803776, 936000000000,
		'{"fp64": 0.5, "fp32": 35.6, "tf32": 35.6, "bf16": 71.2, "fp16": 71.2}',
		'{us-east-2,us-west-1,eu-central-1}', 70),
	('cpu-dev', 'Development: one CPU core and 2 GiB of memory on the operator''s own machine', 'cpu', 2147483648,
		10000000000, '{"fp32": 0.05}',
		'{us-east-1,us-east-2,us-west-1,us-west-2,us-central-1,eu-west-1,eu-central-1,ap-southeast-1}', 80);

insert into prices (id, instance_type, currency, micros_per_hour, effective_from)
select 'price_' || name || '_2025-01-01', name, 'USD', micros, '2025-01-01T00:00:00Z'
from (values
	('h100-80gb', 3000000),
	('a100-80gb', 1500000),
	('a100-40gb', 1500000),
	('a100-slice', 500000),
	('v100-32gb', 450000),
	('rtx-4090', 600000),
	('rtx-3090', 300000),
	('cpu-dev', 360000)
) as seed (name, micros);
