-- SPDX-License-Identifier: Apache-2.0
-- The mesh that was chosen for a job that left it open, and why; null where the customer gave it or there is one device.
-- The mesh itself is in the spec, which all attempts have.
alter table jobs add column parallelism_chosen jsonb;
