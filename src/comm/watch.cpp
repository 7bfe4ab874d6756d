// SPDX-License-Identifier: Apache-2.0
#include "comm/watch.h"

#include <condition_variable>
#include <mutex>
#include <thread>
#include <vector>

#include <c10/util/Exception.h>

#include "core/environment.h"
#include "core/text.h"

namespace drivetrain::comm {

using namespace std::chrono_literals;

namespace {

constexpr Milliseconds kBeat = 500ms;
constexpr Milliseconds kSilent = 2500ms;
constexpr Milliseconds kSilentAfterBreak = 1500ms;

struct Peer {
  int64_t beat = -1;
  Clock::time_point heard = Clock::now();  // When `beat` was last seen to change.
  Ending ending = Ending::none;
  Position position;
  std::string reason;
};

// Both "in NAME #n of ..."; the shapes may differ where the call allows that.
bool is_another_call(const std::string& theirs, const std::string& mine) {
  const auto call = [](const std::string& text) { return text.substr(0, text.find('#')); };
  return theirs.starts_with("in ") && call(theirs) != call(mine);
}

std::string key_of(int rank) { return core::str("pulse/", rank); }

// A rank that died before its first beat was read has said nothing.
std::string place(const Position& position) {
  return position.text.empty() ? "where it has not said" : position.text;
}

std::string rank_name(size_t rank) { return core::str("rank ", rank); }

// One line a field; the reason, which may hold several lines, is last.
std::string encode(const Peer& peer) {
  return core::str(peer.beat, "\n", static_cast<int>(peer.ending), "\n", peer.position.number, "\n",
                   peer.position.text, "\n", peer.reason);
}

void decode(const std::string& text, Peer& peer) {
  const auto lines = core::split(text, '\n');
  if (lines.size() < 5) return;
  const int64_t beat = core::parse_int("heartbeat", lines[0], 0, INT64_MAX);
  if (beat != peer.beat) peer.heard = Clock::now();
  peer.beat = beat;
  peer.ending = static_cast<Ending>(core::parse_int("ending", lines[1], 0, 3));
  peer.position.number =
      static_cast<uint64_t>(core::parse_int("collective", lines[2], 0, INT64_MAX));
  peer.position.text = lines[3];
  peer.reason = core::join(std::span(lines).subspan(4), "\n");
}

}  // namespace

struct Watch::Shared {
  c10::intrusive_ptr<c10d::Store> store;
  size_t rank = 0;
  std::string store_host;
  std::function<Position()> where;  // Not called once is_stopping.

  mutable std::mutex mutex;
  std::condition_variable changed;
  std::vector<Peer> peers;  // This rank's own entry is what it says.
  bool is_stopping = false;
  int64_t asked = 0;     // Reads that somebody waits for,
  int64_t answered = 0;  // and the last one done.
  Clock::time_point read_at = Clock::now();
  Clock::time_point unanswered_since;
  int64_t said = 0;  // The last beat that is in the store.
  std::string store_error;
  bool has_ended = false;  // The thread.

  void run();
  std::string next_pulse();
  std::vector<std::string> exchange(const std::string& pulse, bool reads);
  std::string store_problem() const;

  // Between the last change that was read and the last read.
  Clock::duration silence_of(const Peer& peer) const { return read_at - peer.heard; }

  // The first other rank for which it holds.
  template <class Predicate>
  std::optional<size_t> find(const Predicate& holds) const {
    for (size_t r = 0; r < peers.size(); ++r)
      if (r != rank && holds(peers[r])) return r;
    return std::nullopt;
  }
};

std::string Watch::Shared::next_pulse() {
  Peer& self = peers[rank];
  ++self.beat;
  if (!is_stopping && self.ending == Ending::none) self.position = where();
  return encode(self);
}

// What the others say, if `reads`.
std::vector<std::string> Watch::Shared::exchange(const std::string& pulse, bool reads) {
  store->set(key_of(static_cast<int>(rank)), std::vector<uint8_t>(pulse.begin(), pulse.end()));
  std::vector<std::string> said;
  if (!reads) return said;
  std::vector<std::string> keys;
  for (size_t r = 0; r < peers.size(); ++r) keys.push_back(key_of(static_cast<int>(r)));
  for (const auto& bytes : store->multiGet(keys)) said.emplace_back(bytes.begin(), bytes.end());
  return said;
}

void Watch::Shared::run() {
  std::unique_lock lock(mutex);
  for (bool is_last = false; !is_last && store_error.empty();) {
    is_last = is_stopping;
    const int64_t wanted = asked;
    const bool reads = wanted > answered && !is_last;
    const std::string pulse = next_pulse();
    const int64_t beat = peers[rank].beat;
    lock.unlock();
    std::vector<std::string> heard;
    std::string error;
    try {
      heard = exchange(pulse, reads);
    } catch (const c10::Error& failed) {
      error = core::split(failed.what_without_backtrace(), '\n').front();
    } catch (const std::exception& failed) {
      error = failed.what();
    }
    lock.lock();
    for (size_t r = 0; r < heard.size(); ++r)
      if (r != rank) decode(heard[r], peers[r]);
    store_error = error;
    if (!heard.empty()) {
      answered = wanted;
      read_at = Clock::now();
    }
    said = beat;
    changed.notify_all();
    if (!is_last)
      changed.wait_for(lock, kBeat,
                       [&] { return is_stopping || asked > answered || peers[rank].beat > said; });
  }
  has_ended = true;
  changed.notify_all();
}

std::string Watch::Shared::store_problem() const {
  if (!store_error.empty()) return core::str("does not answer any more (", store_error, ")");
  const auto waited = Clock::now() - unanswered_since;
  if (asked > answered && waited > kSilent)
    return core::str("has not answered for ", seconds(waited));
  return "";
}

Watch::Watch(const c10::intrusive_ptr<c10d::Store>& store, int rank, int world_size,
             std::string store_host, std::function<Position()> where)
    : shared_(std::make_shared<Shared>()) {
  shared_->store = store;
  shared_->rank = static_cast<size_t>(rank);
  shared_->store_host = std::move(store_host);
  shared_->where = std::move(where);
  shared_->peers.resize(world_size);
  // The others read this key as soon as all have joined.
  shared_->exchange(shared_->next_pulse(), false);
  thread_ = std::thread([shared = shared_] { shared->run(); });
}

Watch::~Watch() {
  std::unique_lock lock(shared_->mutex);
  shared_->is_stopping = true;
  shared_->changed.notify_all();
  const bool has_ended = shared_->changed.wait_for(lock, 2s, [&] { return shared_->has_ended; });
  lock.unlock();
  if (has_ended)
    thread_.join();
  else
    thread_.detach();
}

void Watch::end(Ending ending, std::string_view reason) {
  std::unique_lock lock(shared_->mutex);
  Peer& self = shared_->peers[shared_->rank];
  if (self.ending != Ending::none) return;
  self.position = shared_->where();
  self.ending = ending;
  self.reason = reason;
  const int64_t beat = ++self.beat;
  shared_->changed.notify_all();
  // The next beat, which the thread counts by itself, carries it.
  shared_->changed.wait_for(lock, 1s, [&] { return shared_->said > beat || shared_->has_ended; });
}

void Watch::refresh(Milliseconds limit) {
  std::unique_lock lock(shared_->mutex);
  if (shared_->asked == shared_->answered) shared_->unanswered_since = Clock::now();
  const int64_t wanted = ++shared_->asked;
  shared_->changed.notify_all();
  shared_->changed.wait_for(lock, limit,
                            [&] { return shared_->answered >= wanted || shared_->has_ended; });
}

std::optional<std::string> Watch::verdict(uint64_t number, bool connection_broke) const {
  std::lock_guard lock(shared_->mutex);
  if (const auto failed = shared_->find([](const Peer& p) { return p.ending == Ending::failed; }))
    return core::str(rank_name(*failed), " failed ", place(shared_->peers[*failed].position), ": ",
                     shared_->peers[*failed].reason);
  if (const std::string problem = shared_->store_problem(); !problem.empty())
    return core::str(shared_->store_host, " ", problem);
  const auto limit = connection_broke ? kSilentAfterBreak : kSilent;
  if (const auto gone = shared_->find([&](const Peer& p) {
        return p.ending == Ending::none && shared_->silence_of(p) > limit;
      }))
    return core::str(rank_name(*gone), " is gone: silent for ",
                     seconds(shared_->silence_of(shared_->peers[*gone])),
                     "; it last said that it was ", place(shared_->peers[*gone].position));
  // Only then what another rank gave as its reason to stop.
  if (const auto stopped = shared_->find([](const Peer& p) { return p.ending == Ending::stopped; }))
    return shared_->peers[*stopped].reason;
  // One that left after this very collective has done its part; what it sent arrives soon or never.
  if (const auto left = shared_->find([&](const Peer& p) {
        return p.ending == Ending::left &&
               (p.position.number < number ||
                (p.position.number == number && shared_->silence_of(p) > 2 * kSilent));
      }))
    return core::str(rank_name(*left), " has left the world after ",
                     shared_->peers[*left].position.number, " collectives");
  return std::nullopt;
}

std::string Watch::report() const {
  std::lock_guard lock(shared_->mutex);
  constexpr size_t kMost = 16;
  std::vector<std::string> lines;
  for (size_t r = 0; r < shared_->peers.size() && lines.size() < kMost; ++r) {
    const Peer& peer = shared_->peers[r];
    if (r == shared_->rank) continue;
    const char* verb = peer.ending == Ending::none   ? " is "
                       : peer.ending == Ending::left ? " has left, "
                                                     : " stopped ";
    lines.push_back(rank_name(r) + verb + place(peer.position));
  }
  if (shared_->peers.size() > kMost + 1) lines.emplace_back("others are not listed");
  return core::join(lines, "; ");
}

std::string Watch::cause(const Position& mine) const {
  std::lock_guard lock(shared_->mutex);
  std::vector<std::string> late;
  std::vector<std::string> elsewhere;
  for (size_t r = 0; r < shared_->peers.size(); ++r) {
    const Position& peer = shared_->peers[r].position;
    if (r == shared_->rank) continue;
    if (peer.number < mine.number) late.push_back(rank_name(r));
    if (peer.number == mine.number && is_another_call(peer.text, mine.text))
      elsewhere.push_back(rank_name(r));
  }
  if (!late.empty()) return core::str("late: ", core::join(late, " and "));
  if (!elsewhere.empty()) return core::str("in another call: ", core::join(elsewhere, " and "));
  return "no rank is late";
}

bool Watch::is_alone() const {
  std::lock_guard lock(shared_->mutex);
  return !shared_->find([&](const Peer& p) {
    return p.ending == Ending::none && shared_->silence_of(p) <= kSilentAfterBreak;
  });
}

}  // namespace drivetrain::comm
