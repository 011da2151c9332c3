/* SPDX-License-Identifier: Apache-2.0
 * The wire over TCP, by Gloo: its transport between pairs of ranks only, its own collectives are
 * not used. The one C++ file; no exception leaves it. The group's thread calls (interrupt: any);
 * Gloo's own thread moves the bytes. */
#include <gloo/context.h>
#include <gloo/transport/context.h>
#include <gloo/transport/pair.h>
#include <gloo/transport/tcp/device.h>
#include <gloo/transport/unbound_buffer.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <memory>
#include <mutex>
#include <new>
#include <string>
#include <thread>
#include <vector>

extern "C" {
#include "workers/comm/comm_private.h"
#include "workers/comm/comm_store.h"
}

namespace
{

using steady = std::chrono::steady_clock; /* CLOCK_MONOTONIC */
using gloo::transport::UnboundBuffer;

constexpr uint32_t hello_magic = 0x54794331; /* changes with what ranks say to each other */
/* How often a wait looks whether its rank is still there, and at the clock. Gloo tells a buffer
 * that waits for its turn that the connection is lost, but not one whose bytes are under way. */
constexpr std::chrono::milliseconds pulse(20);
/* Gloo's own deadlines never come: they close all connections before we have told anyone why. */
constexpr std::chrono::milliseconds never(COMM_DEADLINE_MS_MAX);
/* Gloo writes as long as the peer reads, and cannot be told to stop before the end of a piece. */
constexpr int64_t piece_bytes = 1 << 20;
constexpr uint64_t canary_slot = COMM_SLOT_COUNT;
constexpr size_t address_max = gloo::transport::Address::kMaxByteSize;

/* What a rank puts into the store; the addresses of its pairs follow, address_bytes for each rank.
 */
struct hello {
	uint32_t magic, size, check, address_bytes;
};
static_assert(sizeof(hello) + COMM_RANKS_MAX * address_max <= COMM_STORE_VALUE_MAX, "too small");

int64_t now_us()
{
	return std::chrono::duration_cast<std::chrono::microseconds>(steady::now().time_since_epoch())
		.count();
}

/* Threads that Gloo makes take no signals from the program, and no SIGPIPE from a lost peer. */
class signals_blocked
{
  public:
	signals_blocked()
	{
		sigset_t all;
		sigfillset(&all);
		pthread_sigmask(SIG_SETMASK, &all, &before_);
	}
	~signals_blocked() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }

  private:
	sigset_t before_;
};

/* The exception in flight as an error; Gloo's begin with a place in its source. */
int caught(struct err *err, int code)
{
	try {
		throw;
	} catch (const std::bad_alloc &) {
		return err_set(err, ERR_NO_MEMORY, nullptr, "no memory for a message");
	} catch (const std::exception &e) {
		const char *text = strstr(e.what(), "] ");
		return err_set(
			err, code, nullptr, "%.200s", e.what()[0] == '[' && text ? text + 2 : e.what());
	} catch (...) {
		return err_set(err, code, nullptr, "an unknown failure");
	}
}

class context : public gloo::Context
{
  public:
	context(int rank, int size) : gloo::Context(rank, size) {}
	void take(std::shared_ptr<gloo::transport::Device> device,
		std::shared_ptr<gloo::transport::Context> transport)
	{
		device_ = std::move(device);
		transportContext_ = std::move(transport);
	}
	bool has_pair(int r) { return r != rank && getPair(r) != nullptr; }
	/* Wakes nobody who waits for a buffer; a connect that waits does end. */
	void close_pairs()
	{
		for (int r = 0; r < size; r++) {
			try {
				if (has_pair(r))
					getPair(r)->close();
			} catch (...) {
				continue; /* it is closed */
			}
		}
	}
};

struct message {
	std::unique_ptr<UnboundBuffer> buffer;
	int peer;
	bool out;
	int64_t pieces; /* not yet through */
};

struct wire {
	struct comm_wire base;
	std::shared_ptr<context> ranks;
	std::vector<message> flight; /* by handle */
	std::vector<int> unused;     /* handles */
	/* By rank: a receive that nobody ever answers, and that fails with the connection. */
	std::vector<std::unique_ptr<UnboundBuffer>> canaries;
	char canary_byte = 0;

	std::mutex lock; /* over the rest: interrupt comes from other threads */
	bool interrupted = false;
	UnboundBuffer *waiting = nullptr;
	bool waiting_out = false;
	bool closing = false;
	std::condition_variable changed;
	std::thread pulse_thread;

	/* Under the lock. The wait returns false, and may be taken up again. */
	void wake()
	{
		if (waiting != nullptr && waiting_out)
			waiting->abortWaitSend();
		else if (waiting != nullptr)
			waiting->abortWaitRecv();
	}
	void run_pulse()
	{
		std::unique_lock<std::mutex> hold(lock);
		while (!changed.wait_for(hold, pulse, [this] { return closing; }))
			wake();
	}
	~wire()
	{
		{
			std::lock_guard<std::mutex> hold(lock);
			closing = true;
		}
		changed.notify_all();
		if (pulse_thread.joinable())
			pulse_thread.join();
	}
};

/* ------------------------------------------------------------------ messages */

int check(struct comm_wire *w, int64_t deadline_us, struct err *err)
{
	struct wire *self = reinterpret_cast<struct wire *>(w);
	std::lock_guard<std::mutex> hold(self->lock);
	if (self->interrupted)
		return err_set(err, ERR_CANCELLED, nullptr, "interrupted");
	if (now_us() >= deadline_us)
		return err_set(err, ERR_TIMEOUT, nullptr, "the deadline passed");
	return 0;
}

int start(struct comm_wire *w, const struct comm_message *m, int64_t deadline_us, int *ret_handle,
	struct err *err)
{
	struct wire *self = reinterpret_cast<struct wire *>(w);
	try {
		if (self->unused.empty())
			return err_set(err, ERR_OVERLOADED, nullptr, "too many messages are in flight");
		int handle = self->unused.back();
		message &into = self->flight[static_cast<size_t>(handle)];
		into = { self->ranks->createUnboundBuffer(m->data, static_cast<size_t>(m->bytes)), m->peer,
			m->out, 0 };
		for (int64_t at = 0; at < m->bytes; at += piece_bytes) {
			int rc = at > 0 ? check(w, deadline_us, err) : 0;
			if (rc < 0)
				return rc;
			auto bytes = static_cast<size_t>(std::min(piece_bytes, m->bytes - at));
			if (m->out)
				into.buffer->send(m->peer, m->slot, static_cast<size_t>(at), bytes);
			else
				into.buffer->recv(m->peer, m->slot, static_cast<size_t>(at), bytes);
			into.pieces++;
		}
		self->unused.pop_back();
		*ret_handle = handle;
		return 0;
	} catch (...) {
		return caught(err, ERR_NETWORK);
	}
}

/* Throws when any rank is gone, and says which: a rank that is here but waits for the lost one
 * would keep us waiting with it. */
void look_around(struct wire *self, int &ret_peer)
{
	int peer = ret_peer;
	for (size_t r = 0; r < self->canaries.size(); r++) {
		if (!self->canaries[r])
			continue;
		ret_peer = static_cast<int>(r);
		self->canaries[r]->abortWaitRecv(); /* do not wait */
		(void)self->canaries[r]->waitRecv(never);
	}
	ret_peer = peer;
}

/* One wait for a piece, to the next pulse. */
int wait_once(struct wire *self, message &m, int64_t deadline_us, bool &ret_done, int &ret_peer,
	struct err *err)
{
	int rc = 0;
	{
		std::lock_guard<std::mutex> hold(self->lock);
		if (self->interrupted)
			return err_set(err, ERR_CANCELLED, nullptr, "interrupted");
		self->waiting = m.buffer.get();
		self->waiting_out = m.out;
	}
	try {
		ret_done = m.out ? m.buffer->waitSend(never) : m.buffer->waitRecv(never);
		if (!ret_done)
			look_around(self, ret_peer);
	} catch (...) {
		rc = caught(err, ERR_NETWORK);
	}
	{
		std::lock_guard<std::mutex> hold(self->lock);
		self->waiting = nullptr;
	}
	return rc < 0 || ret_done ? rc : check(&self->base, deadline_us, err);
}

int await(struct comm_wire *w, int handle, int64_t deadline_us, int *ret_peer, struct err *err)
{
	struct wire *self = reinterpret_cast<struct wire *>(w);
	message &m = self->flight[static_cast<size_t>(handle)];
	*ret_peer = m.peer;
	while (m.pieces > 0) {
		bool done = false;
		int rc = wait_once(self, m, deadline_us, done, *ret_peer, err);
		if (done && --m.pieces > 0)
			rc = check(w, deadline_us, err);
		if (rc < 0)
			return rc;
	}
	return 0;
}

void forget(struct comm_wire *w, int handle)
{
	struct wire *self = reinterpret_cast<struct wire *>(w);
	self->flight[static_cast<size_t>(handle)].buffer.reset();
	self->unused.push_back(handle);
}

int finish(struct comm_wire *w, int handle, int64_t deadline_us, int *ret_peer, struct err *err)
{
	int rc = await(w, handle, deadline_us, ret_peer, err);
	if (rc == 0)
		forget(w, handle);
	return rc;
}

int borrow(struct comm_wire *w, int handle, int64_t deadline_us, const void **ret_data,
	int *ret_peer, struct err *err)
{
	struct wire *self = reinterpret_cast<struct wire *>(w);
	int rc = await(w, handle, deadline_us, ret_peer, err);
	if (rc == 0)
		*ret_data = self->flight[static_cast<size_t>(handle)].buffer->ptr;
	return rc;
}

int look(struct comm_wire *w, int *ret_peer, struct err *err)
{
	struct wire *self = reinterpret_cast<struct wire *>(w);
	int peer = *ret_peer;
	try {
		look_around(self, peer);
		return 0;
	} catch (...) {
		*ret_peer = peer;
		return caught(err, ERR_NETWORK);
	}
}

void interrupt(struct comm_wire *w)
{
	struct wire *self = reinterpret_cast<struct wire *>(w);
	std::lock_guard<std::mutex> hold(self->lock);
	self->interrupted = true;
	self->wake();
}

void drop(struct comm_wire *w)
{
	struct wire *self = reinterpret_cast<struct wire *>(w);
	self->ranks->close_pairs();
	for (message &m : self->flight)
		m.buffer.reset();
	self->canaries.clear();
}

void destroy(struct comm_wire *w)
{
	struct wire *self = reinterpret_cast<struct wire *>(w);
	drop(w);
	delete self;
}

/* ------------------------------------------------------------------ meeting */

/* Closes the pairs at a deadline: a connect that waits for a rank that never comes has no other
 * end. */
class alarm_clock
{
  public:
	alarm_clock(context &ranks, int64_t deadline_us)
		: thread_([this, &ranks, deadline_us] { run(ranks, deadline_us); })
	{
	}
	~alarm_clock()
	{
		{
			std::lock_guard<std::mutex> hold(lock_);
			off_ = true;
		}
		changed_.notify_all();
		thread_.join();
	}

  private:
	void run(context &ranks, int64_t deadline_us)
	{
		std::unique_lock<std::mutex> hold(lock_);
		auto at = steady::time_point(std::chrono::microseconds(deadline_us));
		if (!changed_.wait_until(hold, at, [this] { return off_; }))
			ranks.close_pairs();
	}
	std::mutex lock_;
	std::condition_variable changed_;
	bool off_ = false;
	std::thread thread_;
};

std::string key_of(const struct comm_options *o, int rank)
{
	return std::string(o->name) + ".address." + std::to_string(rank);
}

int64_t open_ms(const struct comm_options *o)
{
	return o->open_ms > 0 ? o->open_ms : int64_t{ COMM_OPEN_MS };
}

/* Makes a pair for each other rank and tells everyone where it listens. */
int publish(const struct comm_options *o, gloo::transport::Context &transport, struct err *err)
{
	std::vector<std::vector<char>> addresses(static_cast<size_t>(o->size));
	hello h = { hello_magic, static_cast<uint32_t>(o->size), o->check, 0 };
	for (int r = 0; r < o->size; r++) {
		if (r == o->rank)
			continue;
		addresses[static_cast<size_t>(r)] = transport.createPair(r)->address().bytes();
		h.address_bytes = static_cast<uint32_t>(addresses[static_cast<size_t>(r)].size());
	}
	std::vector<char> value(sizeof(h) + addresses.size() * h.address_bytes);
	memcpy(value.data(), &h, sizeof(h));
	for (size_t r = 0; r < addresses.size(); r++)
		std::copy(addresses[r].begin(), addresses[r].end(),
			value.begin() + static_cast<ptrdiff_t>(sizeof(h) + r * h.address_bytes));
	return comm_store_put(o->store, key_of(o, o->rank).c_str(), value.data(), value.size(), err);
}

/* Where rank r listens for us. */
int look_up(const struct comm_options *o, int r, int64_t deadline_us,
	std::vector<char> &ret_address, struct err *err)
{
	cleanup(freep) char *value = nullptr;
	size_t bytes = 0;
	hello h = {};
	int64_t left_ms = std::max<int64_t>(0, (deadline_us - now_us()) / 1000);
	int rc = comm_store_get(o->store, key_of(o, r).c_str(), left_ms, &value, &bytes, nullptr);
	if (rc == ERR_TIMEOUT)
		return err_set(err, rc, nullptr,
			"group %s (rank %d of %d): rank %d did not come in %lld ms", o->name, o->rank, o->size,
			r, static_cast<long long>(open_ms(o)));
	if (rc < 0)
		return err_set(err, rc, nullptr,
			"group %s (rank %d of %d): the address of rank %d cannot "
			"be read",
			o->name, o->rank, o->size, r);
	if (bytes >= sizeof(h))
		memcpy(&h, value, sizeof(h));
	size_t size = static_cast<size_t>(o->size);
	if (h.magic != hello_magic || h.size != size || h.check != o->check ||
		h.address_bytes > address_max || bytes != sizeof(h) + size * h.address_bytes)
		return err_set(err, ERR_CONFLICT, nullptr,
			"group %s (rank %d of %d): rank %d opened it with other options", o->name, o->rank,
			o->size, r);
	const char *mine = value + sizeof(h) + static_cast<size_t>(o->rank) * h.address_bytes;
	ret_address.assign(mine, mine + h.address_bytes);
	return 0;
}

int connect(const struct comm_options *o, context &ranks, int64_t deadline_us, struct err *err)
{
	alarm_clock clock(ranks, deadline_us);
	for (int r = 0; r < o->size; r++) {
		std::vector<char> address;
		if (r == o->rank)
			continue;
		int rc = look_up(o, r, deadline_us, address, err);
		if (rc < 0)
			return rc;
		struct err detail = {};
		try {
			ranks.getPair(r)->connect(address);
		} catch (...) {
			rc = caught(&detail, ERR_NETWORK);
		}
		if (now_us() >= deadline_us)
			return err_set(err, ERR_TIMEOUT, nullptr,
				"group %s (rank %d of %d): rank %d did not connect in %lld ms", o->name, o->rank,
				o->size, r, static_cast<long long>(open_ms(o)));
		if (rc < 0)
			return err_set(err, rc, nullptr,
				"group %s (rank %d of %d): no connection to rank %d: %s", o->name, o->rank, o->size,
				r, detail.message);
	}
	return 0;
}

int open(const struct comm_options *o, int64_t deadline_us, std::unique_ptr<struct wire> &w,
	struct err *err)
{
	signals_blocked blocked;
	gloo::transport::tcp::attr where;
	where.hostname = o->host != nullptr ? o->host : "127.0.0.1";
	auto device = gloo::transport::tcp::CreateDevice(where);
	auto transport = device->createContext(o->rank, o->size);
	transport->setTimeout(never);
	int rc = publish(o, *transport, err);
	if (rc < 0)
		return rc;
	w->ranks = std::make_shared<context>(o->rank, o->size);
	w->ranks->take(device, transport);
	size_t handles = static_cast<size_t>(o->size) * COMM_WIRE_FLIGHT;
	w->flight.resize(handles);
	w->unused.reserve(handles);
	for (size_t handle = handles; handle-- > 0;)
		w->unused.push_back(static_cast<int>(handle));
	rc = connect(o, *w->ranks, deadline_us, err);
	if (rc < 0)
		return rc;
	w->canaries.resize(static_cast<size_t>(o->size));
	for (int r = 0; r < o->size; r++) {
		if (r == o->rank)
			continue;
		auto canary = w->ranks->createUnboundBuffer(&w->canary_byte, 1);
		canary->recv(r, canary_slot, 0, 1);
		w->canaries[static_cast<size_t>(r)] = std::move(canary);
	}
	struct wire *self = w.get();
	w->pulse_thread = std::thread([self] { self->run_pulse(); });
	return 0;
}

} // namespace

extern "C" int comm_gloo_open(
	const struct comm_options *o, int64_t deadline_us, struct comm_wire **ret, struct err *err)
{
	static const struct comm_wire_ops ops = { start, finish, borrow, forget, check, look, interrupt,
		drop, destroy };
	try {
		auto w = std::make_unique<struct wire>();
		w->base = { &ops, piece_bytes };
		int rc = open(o, deadline_us, w, err);
		if (rc < 0)
			return rc;
		*ret = &w.release()->base;
		return 0;
	} catch (...) {
		return caught(err, ERR_NETWORK);
	}
}
