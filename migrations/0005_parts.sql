-- SPDX-License-Identifier: Apache-2.0
-- An attempt on several machines. The first of them, with rank 0, is attempts.agent_id; each further one has a row here,
-- with a lease and a sequence of messages of its own. Any lease that runs out is the whole attempt's.
create table attempt_parts (
	attempt_id  text not null references attempts,
	part        int not null check (part >= 1),
	agent_id    text not null references agents,
	lease_until timestamptz not null,
	report_seq  bigint not null default 0,
	released    boolean not null default false,
	primary key (attempt_id, part),
	unique (attempt_id, agent_id)
);
create index attempt_parts_agent_live on attempt_parts (agent_id) where not released;
create index attempt_parts_lease on attempt_parts (lease_until) where not released;

-- What the ranks of one machine tell those of the others to be found; gone with the attempt.
create table attempt_rendezvous (
	attempt_id text not null references attempts,
	number     bigint generated always as identity, -- in the order of commits: written with the attempt locked
	agent_id   text not null references agents,
	key        text not null,
	value      text not null, -- base64
	primary key (attempt_id, key)
);
create index attempt_rendezvous_number on attempt_rendezvous (attempt_id, number);

-- What trainers on other machines reach this one's at.
alter table agents add column host text not null default '127.0.0.1';
