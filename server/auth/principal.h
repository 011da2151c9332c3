/* SPDX-License-Identifier: Apache-2.0
 * Who is asking. Filled by the daemon's gate from an API key or a JWT, read by handlers. */
#pragma once

#include "core/base/ident.h"

enum principal_role { ROLE_NONE, ROLE_MEMBER, ROLE_OWNER, ROLE_OPERATOR, ROLE_AGENT };

struct principal {
	enum principal_role role;
	char id[IDENT_MAX];        /* api key id, or the JWT's subject cut to length */
	char tenant_id[IDENT_MAX]; /* "" for operators (unless they named one) and agents */
	char agent_region[32];     /* agents: what the operator vouches for */
	char agent_name[65];
};
