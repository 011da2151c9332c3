-- SPDX-License-Identifier: Apache-2.0
-- The yard's tables. Times are timestamptz in UTC, truncated to milliseconds by yard_now(), so that segments add up
-- exactly. Ids are text: a prefix and a ULID. Money is bigint: micros of the currency's major unit for prices, minor
-- units for invoices.

create extension if not exists btree_gist;

create function yard_now() returns timestamptz language sql volatile as
$$ select date_trunc('milliseconds', clock_timestamp()) $$;

-- ---------------------------------------------------------------- tenants and credentials

create table tenants (
	id         text primary key,
	name       text not null check (length(name) between 1 and 64),
	residency  text[] not null check (cardinality(residency) >= 1), -- {any} = anywhere
	currency   text not null default 'USD' check (currency = 'USD'),
	status     text not null default 'active' check (status in ('active', 'suspended')),
	created_at timestamptz not null default yard_now()
);

create table api_keys (
	id           text primary key,
	tenant_id    text references tenants, -- null for operators and agents
	role         text not null check (role in ('owner', 'member', 'operator', 'agent')),
	name         text not null check (length(name) between 1 and 64),
	secret_hash  bytea not null unique,   -- SHA-256 of the whole key; the key itself is never stored
	redacted     text not null,           -- "ty_…abcd" for people
	agent_region text,                    -- agents: the region the operator vouches for
	created_at   timestamptz not null default yard_now(),
	last_used_at timestamptz,
	revoked_at   timestamptz,
	check ((role in ('owner', 'member')) = (tenant_id is not null)),
	check ((role = 'agent') = (agent_region is not null))
);
create index api_keys_tenant on api_keys (tenant_id, created_at);

-- ---------------------------------------------------------------- catalogue

create table instance_types (
	name            text primary key,
	description     text not null,
	kind            text not null check (kind in ('gpu', 'slice', 'cpu')),
	memory_bytes    bigint not null check (memory_bytes > 0),
	bandwidth_bytes_per_s bigint not null,
	tflops          jsonb not null, -- {"fp32": 60.0, "bf16": 989.0, …} dense peaks
	regions         text[] not null,
	sort_order      int not null
);

create table prices (
	id             text primary key,
	instance_type  text not null references instance_types,
	currency       text not null default 'USD',
	micros_per_hour bigint not null check (micros_per_hour >= 0), -- per device-hour
	effective_from timestamptz not null,
	created_at     timestamptz not null default yard_now(),
	unique (instance_type, currency, effective_from)
);

-- ---------------------------------------------------------------- machines

create table agents (
	id            text primary key,
	key_id        text not null unique references api_keys, -- one machine, one credential
	name          text not null,
	region        text not null,
	instance_type text not null references instance_types,
	boot_id       text not null,
	engine_build  text not null,
	rates         jsonb not null default '{}',
	status        text not null default 'ready' check (status in ('ready', 'draining', 'lost')),
	version       bigint not null default 1, -- raised whenever the list that a poll returns changes
	registered_at timestamptz not null default yard_now(),
	last_seen_at  timestamptz not null default yard_now()
);

create table devices (
	id              text primary key,
	agent_id        text not null references agents,
	device_index    int not null check (device_index >= 0),
	name            text not null,
	instance_type   text not null references instance_types,
	region          text not null,
	memory_bytes    bigint not null,
	registered_at   timestamptz not null default yard_now(),
	deregistered_at timestamptz,
	-- The open end of the device's tiling; closing it writes an immutable segment.
	open_state      text not null default 'idle' check (open_state in ('idle', 'starting', 'training', 'stopping')),
	open_since      timestamptz not null,
	open_attempt_id text,
	withdrawn       boolean not null default false -- no longer listed by its agent: deregistered once idle
);
create unique index devices_in_service on devices (agent_id, device_index) where deregistered_at is null;

-- ---------------------------------------------------------------- files

create table files (
	id          text primary key,
	tenant_id   text not null references tenants,
	filename    text not null,
	purpose     text not null,
	bytes       bigint not null check (bytes >= 0),
	sha256      text not null check (sha256 ~ '^[0-9a-f]{64}$'),
	status      text not null default 'processed' check (status in ('uploaded', 'processed', 'error')),
	residency   text[] not null,
	created_at  timestamptz not null default yard_now(),
	deleted_at  timestamptz
);
create index files_tenant on files (tenant_id, id desc);

-- Content that the blob store holds, by tenant: two tenants never share a stored byte.
create table blobs (
	tenant_id  text not null references tenants,
	sha256     text not null check (sha256 ~ '^[0-9a-f]{64}$'),
	bytes      bigint not null,
	created_at timestamptz not null default yard_now(),
	reused_at  timestamptz, -- stored again: somebody is about to refer to it, so it is not dropped now
	primary key (tenant_id, sha256)
);

-- ---------------------------------------------------------------- jobs

create table jobs (
	id              text primary key,
	tenant_id       text not null references tenants,
	name            text not null default '',
	status          text not null check (status in
		('validating_files', 'queued', 'running', 'paused', 'succeeded', 'failed', 'cancelled')),
	reason_code     text,          -- why it is in this status, when that needs saying
	reason_message  text,
	spec            jsonb not null, -- resolved
	plan            jsonb not null, -- summary: bytes by kind, FLOPs, steps
	metadata        jsonb not null default '{}',
	residency       text[] not null,
	instance_type   text not null references instance_types,
	device_count    int not null check (device_count >= 1),
	priority        int not null default 0 check (priority between -1 and 1),
	max_runtime_s   bigint not null default 0,
	seq             bigint not null default 0, -- number of the last event
	attempt_count   int not null default 0,
	barren_failures int not null default 0,    -- failures in a row without a new checkpoint
	cancel_requested_at timestamptz,
	blocked_code    text,                      -- queued: what the scheduler last found in the way
	blocked_message text,
	progress        jsonb not null default '{}',
	error           jsonb,
	created_by      text,                      -- api key id
	created_at      timestamptz not null default yard_now(),
	queued_at       timestamptz,
	started_at      timestamptz,
	finished_at     timestamptz
);
create index jobs_tenant on jobs (tenant_id, id desc);
create index jobs_queue on jobs (priority desc, queued_at, id) where status = 'queued';

create table job_files (
	job_id   text not null references jobs,
	role     text not null check (role in ('training_file', 'validation_file')),
	position int not null,
	file_id  text not null references files,
	primary key (job_id, role, position)
);
create index job_files_file on job_files (file_id);

create table job_events (
	job_id text not null references jobs,
	seq    bigint not null,
	type   text not null,
	at     timestamptz not null default yard_now(),
	data   jsonb not null default '{}',
	primary key (job_id, seq)
);

-- ---------------------------------------------------------------- attempts

create sequence lease_epoch;

create table attempts (
	id            text primary key,
	job_id        text not null references jobs,
	tenant_id     text not null references tenants,
	number        int not null,
	agent_id      text not null references agents,
	epoch         bigint not null default nextval('lease_epoch'), -- the fence: every worker write carries it
	token         text not null, -- capability for this attempt's blobs; worthless once the attempt has ended
	lease_until   timestamptz not null,
	status        text not null check (status in ('assigned', 'starting', 'training', 'stopping', 'ended')),
	desired       text not null default 'run' check (desired in ('run', 'cancel', 'pause')),
	outcome       text check (outcome in ('succeeded', 'failed', 'cancelled', 'paused', 'preempted', 'lost')),
	reason        text,
	reason_message text,
	rank          int,
	exit_code     int,
	signal        int,
	last_lines    jsonb not null default '[]',
	report_seq    bigint not null default 0, -- last message of the agent that was applied
	resume_checkpoint_id text,
	last_step     bigint not null default 0,
	stall_ms      bigint not null,
	progress_at   timestamptz not null default yard_now(), -- when the step counter last moved
	assigned_at   timestamptz not null default yard_now(),
	training_at   timestamptz,
	ended_at      timestamptz,
	unique (job_id, number),
	check ((status = 'ended') = (outcome is not null))
);
create unique index attempts_one_live on attempts (job_id) where status <> 'ended';
create index attempts_agent_live on attempts (agent_id) where status <> 'ended';
create index attempts_lease on attempts (lease_until) where status <> 'ended';

create table attempt_devices (
	attempt_id text not null references attempts,
	rank       int not null,
	device_id  text not null references devices,
	released   boolean not null default false,
	primary key (attempt_id, rank)
);
-- One device is never held by two attempts.
create unique index attempt_devices_one_holder on attempt_devices (device_id) where not released;

create table checkpoints (
	id         text primary key,
	job_id     text not null references jobs,
	tenant_id  text not null references tenants,
	attempt_id text not null references attempts,
	step       bigint not null,
	bytes      bigint not null,
	metrics    jsonb not null default '{}',
	residency  text[] not null,
	created_at timestamptz not null default yard_now(),
	trimmed_at timestamptz, -- past checkpoint.keep: no longer resumed from; the row stays
	dropped_at timestamptz, -- its content, where nothing else refers to it, is gone from the store
	unique (attempt_id, step)
);
create index checkpoints_trimmed on checkpoints (trimmed_at) where trimmed_at is not null and dropped_at is null;
create index checkpoints_job on checkpoints (job_id, step desc);

create table checkpoint_files (
	checkpoint_id text not null references checkpoints,
	name          text not null,
	sha256        text not null,
	bytes         bigint not null,
	primary key (checkpoint_id, name)
);

create table models (
	id         text primary key,
	job_id     text not null unique references jobs,
	tenant_id  text not null references tenants,
	bytes      bigint not null,
	metrics    jsonb not null default '{}',
	residency  text[] not null,
	created_at timestamptz not null default yard_now()
);

create table model_files (
	model_id text not null references models,
	name     text not null,
	sha256   text not null,
	bytes    bigint not null,
	primary key (model_id, name)
);

-- ---------------------------------------------------------------- metering

-- One device, one half-open UTC interval, one state. Written once, when the state of the interval is decided.
create table segments (
	id         bigint generated always as identity primary key,
	device_id  text not null references devices,
	period     tstzrange not null check (not isempty(period) and lower_inc(period) and not upper_inc(period)
		and not lower_inf(period) and not upper_inf(period)),
	state      text not null check (state in ('billed', 'unbilled', 'idle', 'lost')),
	reason     text not null, -- idle, starting, training, stopping, agent_lost, …
	attempt_id text references attempts,
	job_id     text references jobs,
	tenant_id  text references tenants,
	price_id   text references prices, -- set exactly on billed segments
	check ((state = 'billed') = (price_id is not null)),
	check ((state = 'idle') = (attempt_id is null)),
	check ((attempt_id is null) = (job_id is null) and (attempt_id is null) = (tenant_id is null)),
	exclude using gist (device_id with =, period with &&)
);
create index segments_attempt on segments (attempt_id);
create index segments_tenant on segments (tenant_id, id) where state = 'billed';

create function refuse_change() returns trigger language plpgsql as
$$ begin raise exception '% of % is not allowed: its rows are written once', tg_op, tg_table_name; end $$;
create trigger segments_immutable before update or delete on segments
	for each row execute function refuse_change();

-- ---------------------------------------------------------------- invoices

create table invoices (
	id             text primary key,
	tenant_id      text not null references tenants,
	status         text not null check (status in ('draft', 'finalized', 'paid', 'void', 'uncollectible')),
	period         tstzrange not null,
	currency       text not null,
	total_minor    bigint not null,
	content        text,   -- the canonical JSON that was hashed, set when finalized
	content_sha256 text,
	created_at     timestamptz not null default yard_now(),
	finalized_at   timestamptz,
	exclude using gist (tenant_id with =, period with &&) where (status <> 'void')
);

create table invoice_lines (
	invoice_id    text not null references invoices,
	line          int not null,
	job_id        text not null references jobs,
	instance_type text not null references instance_types,
	price_id      text not null references prices,
	quantity_ms   bigint not null check (quantity_ms > 0),
	amount_minor  bigint not null check (amount_minor >= 0),
	primary key (invoice_id, line)
);

-- A segment is on one invoice at most.
create table invoice_segments (
	segment_id bigint primary key references segments,
	invoice_id text not null,
	line       int not null,
	foreign key (invoice_id, line) references invoice_lines
);
create index invoice_segments_line on invoice_segments (invoice_id, line);

-- ---------------------------------------------------------------- residency, idempotency

create table residency_decisions (
	id           bigint generated always as identity primary key,
	at           timestamptz not null default yard_now(),
	rule_version int not null,
	question     text not null check (question in ('upload', 'submit', 'dispatch', 'fetch', 'export')),
	tenant_id    text references tenants,
	subject      text not null, -- id of the file, job or attempt
	allowed_set  text[] not null,
	place        text not null, -- the region asked about
	allowed      boolean not null,
	reason       text not null
);
create index residency_decisions_subject on residency_decisions (subject, id);
create trigger residency_decisions_immutable before update or delete on residency_decisions
	for each row execute function refuse_change();

create table idempotency_keys (
	owner       text not null, -- tenant id or api key id
	key         text not null check (length(key) between 1 and 255),
	operation   text not null,
	body_sha256 text not null,
	status      int,           -- null while the first request is being served
	response    text,
	created_at  timestamptz not null default yard_now(),
	primary key (owner, key)
);
create index idempotency_keys_age on idempotency_keys (created_at);
