-- SPDX-License-Identifier: Apache-2.0
-- GPUs fail: a device that its agent reports as faulty takes no more attempts until an operator returns it.
alter table devices
	add column uuid text not null default '', -- of a GPU or a MIG instance; '' for CPU devices
	add column cordoned_at timestamptz,
	add column cordon_reason text,
	add check ((cordoned_at is null) = (cordon_reason is null));
create index devices_uuid on devices (agent_id, uuid) where uuid <> '';

-- What the machine said of its driver and its build; null for machines without GPUs.
alter table agents add column cuda jsonb;

-- What happened to devices, for operators.
create table device_events (
	id         bigint generated always as identity primary key,
	device_id  text not null references devices,
	kind       text not null check (kind in ('cordoned', 'returned')),
	reason     text not null default '',
	created_at timestamptz not null default yard_now()
);
create index device_events_device on device_events (device_id, id);
create trigger device_events_immutable before update or delete on device_events
	for each row execute function refuse_change();
