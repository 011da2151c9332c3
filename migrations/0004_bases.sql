-- SPDX-License-Identifier: Apache-2.0
-- Jobs that start from what another job has left, and jobs that bring their own tokenizer.

-- Whose weights the job starts from: a checkpoint, or a finished model. Neither is dropped before the job has ended.
alter table jobs add column base_checkpoint_id text references checkpoints;
alter table jobs add column base_model_id text references models;
alter table jobs add check (base_checkpoint_id is null or base_model_id is null);
create index jobs_base_checkpoint on jobs (base_checkpoint_id) where base_checkpoint_id is not null;

alter table job_files drop constraint job_files_role_check;
alter table job_files add constraint job_files_role_check
	check (role in ('training_file', 'validation_file', 'tokenizer'));
