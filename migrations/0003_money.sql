-- SPDX-License-Identifier: Apache-2.0
-- What the database itself holds about money, so that no program can break it: prices and finalized invoices never
-- change, an invoice moves only along its life, and an interval splits where its price or its month does.

alter table invoice_lines add column description text not null;

-- ---------------------------------------------------------------- prices

create trigger prices_immutable before update or delete on prices
	for each row execute function refuse_change();

-- A price for time that is billed already would make those segments wrong after the fact.
create function prices_refuse_past() returns trigger language plpgsql as $$
begin
	if exists (select from segments s join devices d on d.id = s.device_id
			where s.state = 'billed' and d.instance_type = new.instance_type and upper(s.period) > new.effective_from) then
		raise exception 'price of % from % is not allowed: time after that is billed already',
			new.instance_type, new.effective_from using errcode = 'check_violation';
	end if;
	return new;
end $$;
create trigger prices_not_in_the_past before insert on prices
	for each row execute function prices_refuse_past();

-- The pieces of [since, until) that have one price and lie in one month (UTC), in order. price_id is null where no price
-- was in force. They tile the interval exactly.
create function price_slices(type text, since timestamptz, until timestamptz)
	returns table (slice tstzrange, price_id text) language sql stable as $$
	with cuts as (
		select since as at where since < until
		union
		select p.effective_from from prices p
		where p.instance_type = type and p.effective_from > since and p.effective_from < until
		union
		select m at time zone 'UTC' from generate_series(date_trunc('month', since at time zone 'UTC') + interval '1 month',
			until at time zone 'UTC', interval '1 month') m
		where m at time zone 'UTC' < until
	), pieces as (
		select at, lead(at, 1, until) over (order by at) as stop from cuts
	)
	select tstzrange(at, stop, '[)'),
		(select p.id from prices p where p.instance_type = type and p.effective_from <= at
			order by p.effective_from desc limit 1)
	from pieces order by at
$$;

-- ---------------------------------------------------------------- invoices

create function invoices_guard() returns trigger language plpgsql as $$
begin
	if tg_op = 'DELETE' then
		if old.status <> 'draft' then
			raise exception 'invoice % is %: it is kept', old.id, old.status using errcode = 'integrity_constraint_violation';
		end if;
		return old;
	end if;
	if old.status <> new.status and (old.status, new.status) not in (
			('draft', 'finalized'), ('finalized', 'paid'), ('finalized', 'void'), ('finalized', 'uncollectible'),
			('uncollectible', 'paid'), ('uncollectible', 'void')) then
		raise exception 'invoice %: % -> % is not a move of an invoice', old.id, old.status, new.status
			using errcode = 'integrity_constraint_violation';
	end if;
	if old.status <> 'draft' and (old.id, old.tenant_id, old.period, old.currency, old.total_minor, old.content,
			old.content_sha256, old.created_at, old.finalized_at) is distinct from (new.id, new.tenant_id, new.period,
			new.currency, new.total_minor, new.content, new.content_sha256, new.created_at, new.finalized_at) then
		raise exception 'invoice % is %: its content never changes', old.id, old.status
			using errcode = 'integrity_constraint_violation';
	end if;
	return new;
end $$;
create trigger invoices_guarded before update or delete on invoices
	for each row execute function invoices_guard();

alter table invoices add check (status = 'draft' or
	(content is not null and content_sha256 is not null and finalized_at is not null));

-- Lines and their segments are written while the invoice is a draft. A void invoice gives its segments back. Once a
-- statement, over all rows that it touched; an update touches what they were and what they are.
create function invoice_parts_guard() returns trigger language plpgsql as $$
declare
	bad record;
begin
	perform from invoices where id in (select invoice_id from touched) for share;
	select id, status into bad from invoices where id in (select invoice_id from touched) and status <> 'draft'
		and not (status = 'void' and tg_op = 'DELETE' and tg_table_name = 'invoice_segments') limit 1;
	if found then
		raise exception '% of %: invoice % is %, its content never changes', tg_op, tg_table_name, bad.id, bad.status
			using errcode = 'integrity_constraint_violation';
	end if;
	return null;
end $$;
create trigger invoice_lines_insert after insert on invoice_lines referencing new table as touched
	for each statement execute function invoice_parts_guard();
create trigger invoice_lines_update_old after update on invoice_lines referencing old table as touched
	for each statement execute function invoice_parts_guard();
create trigger invoice_lines_update_new after update on invoice_lines referencing new table as touched
	for each statement execute function invoice_parts_guard();
create trigger invoice_lines_delete after delete on invoice_lines referencing old table as touched
	for each statement execute function invoice_parts_guard();
create trigger invoice_segments_insert after insert on invoice_segments referencing new table as touched
	for each statement execute function invoice_parts_guard();
create trigger invoice_segments_update_old after update on invoice_segments referencing old table as touched
	for each statement execute function invoice_parts_guard();
create trigger invoice_segments_update_new after update on invoice_segments referencing new table as touched
	for each statement execute function invoice_parts_guard();
create trigger invoice_segments_delete after delete on invoice_segments referencing old table as touched
	for each statement execute function invoice_parts_guard();

create index invoices_tenant on invoices (tenant_id, id desc);
create index segments_job on segments (job_id, id);
create index segments_window on segments (tenant_id, upper(period)) where tenant_id is not null;
create index segments_device on segments (device_id, lower(period), id);
