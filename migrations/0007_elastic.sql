-- SPDX-License-Identifier: Apache-2.0
-- What an attempt has of its job's wish: an elastic job (parallelism.min_data) may go on with fewer devices, the data axis
-- cut to a divisor. Null for attempts of before: as the job's spec says.
alter table attempts
	add column device_count int check (device_count >= 1),
	add column data_ways    int check (data_ways >= 1);
