#include "xla_ffi/comm/processes/links/segments.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "xla_ffi/comm/processes/connections/hub.h"
#include "xla_ffi/device/host/device.h"

namespace jaxmg {
namespace {

// The alignment of allocations that cuBLAS prefers.
constexpr size_t kAlignment = 512;
// The size of the smallest segment. It limits the number of segments, each of which needs a file.
constexpr size_t kLeastBytes = size_t{16} << 20;
// The words of a pair of processes: enough for the streams of many concurrent calls.
constexpr size_t kWordBytes = size_t{256} << 10;
constexpr uint32_t kWords = kWordBytes / sizeof(uint32_t);
// Exceeds any count that a stream may still reach.
constexpr uint32_t kFarAhead = uint32_t{1} << 30;

constexpr int32_t kWordsNumber = -1;

// Limit for segments that a process has announced and not released. Few are needed, because a
// segment holds many blocks.
constexpr size_t kMostSegments = 4096;

// Returns whether all columns of a block lie within `bytes`. The sizes come from another process.
bool Fits(const Bytes2D& block, size_t pitch, size_t bytes) {
  const size_t last = block.columns == 0 ? 0 : block.columns - 1;
  size_t end = 0;
  return !__builtin_mul_overflow(last, pitch, &end) &&
         !__builtin_add_overflow(end, block.height, &end) && end <= bytes;
}

OutFrame SegmentFrame(FrameType type, int32_t number, size_t bytes) {
  OutFrame frame;
  frame.header.type = type;
  frame.header.from = number;
  frame.header.value = static_cast<int64_t>(bytes);
  return frame;
}

}  // namespace

Segments& Segments::Instance() { return Forever<Segments>(); }

std::unique_ptr<Device> NewSharingHostDevice() {
  const Transport transport = Hub::Instance().transport();
  if (transport == Transport::kUnix || transport == Transport::kTcp) return NewHostDevice();
  Segments& segments = Segments::Instance();
  segments.Use(HostMemorySource());
  return NewHostDevice(
      {[&](size_t bytes, void** data) { return segments.Allocate(0, bytes, data); },
       [&](void* data) { segments.Free(data); }});
}

// --- This process's memory ----------------------------------------------------------------------

// Allocates from the smallest gap that is large enough.
bool Segments::TakeGap(int ordinal, size_t bytes, void** data) {
  Segment* from = nullptr;
  std::map<size_t, size_t>::iterator best;
  for (Segment& segment : segments_) {
    if (segment.ordinal != ordinal) continue;
    for (auto gap = segment.free.begin(); gap != segment.free.end(); ++gap) {
      if (gap->second < bytes || (from != nullptr && gap->second >= best->second)) continue;
      from = &segment;
      best = gap;
    }
  }
  if (from == nullptr) return false;
  const auto [offset, room] = *best;
  from->used[offset] = bytes;
  if (room > bytes) from->free[offset + bytes] = room - bytes;
  from->free.erase(offset);
  *data = from->data + offset;
  return true;
}

Status Segments::Allocate(int ordinal, size_t bytes, void** data) {
  bytes = (bytes + kAlignment - 1) / kAlignment * kAlignment;
  std::lock_guard<std::mutex> lock(pool_);
  if (TakeGap(ordinal, bytes, data)) return Status::Ok();
  // Unused segments are too small for this allocation, and occupy memory that it needs.
  DropUnused(ordinal);
  MemorySource* source = source_;
  if (source == nullptr) {
    return Error(Code::kInternal, "the processes share no memory, so none can be allocated");
  }
  size_t room = std::max(bytes, kLeastBytes);
  void* begin = nullptr;
  int file = -1;
  JAXMG_RETURN_IF_ERROR(source->Make(ordinal, &room, &begin, &file));
  Fd owned(file);
  segments_.push_back({++last_number_,
                       ordinal,
                       static_cast<char*>(begin),
                       room,
                       std::make_shared<const Fd>(std::move(owned)),
                       {{0, room}},
                       {}});
  TakeGap(ordinal, bytes, data);
  return Status::Ok();
}

void Segments::Free(void* data) noexcept {
  std::lock_guard<std::mutex> lock(pool_);
  for (Segment& segment : segments_) {
    const auto offset = static_cast<size_t>(static_cast<char*>(data) - segment.data);
    const auto used = segment.used.find(offset);
    if (static_cast<char*>(data) < segment.data || used == segment.used.end()) continue;
    // Moves the map node from `used` to `free`, which allocates no memory.
    auto node = segment.used.extract(used);
    auto gap = segment.free.insert(std::move(node)).position;
    if (const auto next = std::next(gap);
        next != segment.free.end() && gap->first + gap->second == next->first) {
      gap->second += next->second;
      segment.free.erase(next);
    }
    if (gap != segment.free.begin()) {
      const auto before = std::prev(gap);
      if (before->first + before->second == gap->first) {
        before->second += gap->second;
        segment.free.erase(gap);
      }
    }
    return;
  }
}

bool Segments::Contains(const void* data) {
  std::lock_guard<std::mutex> lock(pool_);
  return std::any_of(segments_.begin(), segments_.end(), [&](const Segment& segment) {
    return data >= segment.data && data < segment.data + segment.bytes;
  });
}

size_t Segments::bytes() {
  std::lock_guard<std::mutex> lock(pool_);
  size_t sum = 0;
  for (const Segment& segment : segments_) sum += segment.bytes;
  return sum;
}

void Segments::DropUnused(int ordinal) noexcept {
  for (auto segment = segments_.begin(); segment != segments_.end();) {
    if (segment->ordinal != ordinal || !segment->used.empty()) {
      ++segment;
      continue;
    }
    {
      auto lock = monitor_.Lock();
      for (const auto& [process, peer] : peers_) {
        auto& announced = peer->announced_;
        const auto found = std::find(announced.begin(), announced.end(), segment->number);
        if (found == announced.end()) continue;
        announced.erase(found);
        peer->connection_->SendOrBreak(
            SegmentFrame(FrameType::kForget, segment->number, segment->bytes));
      }
    }
    source_.load()->Unmap(segment->data, segment->bytes);
    segment = segments_.erase(segment);
  }
}

Status MemoryPeer::Locate(const Bytes2D& block, BlockLocation* location) {
  Segments& segments = Segments::Instance();
  std::lock_guard<std::mutex> pool(segments.pool_);
  for (const Segments::Segment& segment : segments.segments_) {
    const auto* begin = static_cast<const char*>(block.data);
    if (begin < segment.data || begin >= segment.data + segment.bytes) continue;
    location->segment = segment.number;
    location->offset = begin - segment.data;
    location->pitch = static_cast<int64_t>(block.pitch);
    auto lock = segments.monitor_.Lock();
    if (std::find(announced_.begin(), announced_.end(), segment.number) != announced_.end())
      return Status::Ok();
    announced_.reserve(announced_.size() + 1);
    OutFrame frame = SegmentFrame(FrameType::kSegment, segment.number, segment.bytes);
    frame.file = segment.file;
    JAXMG_RETURN_IF_ERROR(connection_->Send(std::move(frame)));
    announced_.push_back(segment.number);
    return Status::Ok();
  }
  return Error(Code::kInternal, "a block for another process is not in memory that it shares");
}

// --- Other processes ----------------------------------------------------------------------------

std::shared_ptr<MemoryPeer> Segments::FindOrAddPeer(int process) {
  std::shared_ptr<MemoryPeer>& peer = peers_[process];
  if (peer == nullptr) peer = std::make_shared<MemoryPeer>();
  return peer;
}

// Creates this process's words and announces them to the peer.
Status Segments::OpenWords(MemoryPeer& peer) {
  void* words = nullptr;
  int file = -1;
  JAXMG_RETURN_IF_ERROR(MakeHostSegment(kWordBytes, &words, &file));
  auto owned = std::make_shared<const Fd>(Fd(file));
  JAXMG_RETURN_IF_ERROR(source_.load()->Register(words, kWordBytes));
  peer.words_ = static_cast<uint32_t*>(words);
  peer.counts_.assign(kWords, 0);
  peer.taken_.assign(kWords, 0);
  peer.released_.assign(kWords, 0);
  OutFrame frame = SegmentFrame(FrameType::kSegment, kWordsNumber, kWordBytes);
  frame.file = std::move(owned);
  return peer.connection_->Send(std::move(frame));
}

Status Segments::Connect(int process, const std::shared_ptr<Connection>& connection,
                         Clock::time_point deadline, std::shared_ptr<MemoryPeer>* peer) {
  std::shared_ptr<MemoryPeer> found;
  {
    auto lock = monitor_.Lock();
    found = FindOrAddPeer(process);
    if (found->connection_ == nullptr) found->connection_ = connection;
  }
  std::lock_guard<std::mutex> connecting(found->connecting_);
  if (found->connected_) {
    *peer = std::move(found);
    return Status::Ok();
  }
  if (source_ == nullptr) {
    if (!found->refusal_sent_) {
      JAXMG_RETURN_IF_ERROR(connection->Send(SegmentFrame(FrameType::kForget, kWordsNumber, 0)));
      found->refusal_sent_ = true;
    }
    return Status::Ok();
  }
  if (found->words_ == nullptr) JAXMG_RETURN_IF_ERROR(OpenWords(*found));
  Fd file;
  {
    auto lock = monitor_.Lock();
    const WaitPolicy policy = {deadline - Clock::now()};
    monitor_.Wait(lock, policy,
                  [&] { return found->words_file_.get() >= 0 || found->refused_ || found->lost_; });
    if (found->refused_) return Status::Ok();
    file = std::move(found->words_file_);
  }
  if (file.get() < 0) {
    return Error(Code::kUnavailable, Hub::Instance().Describe(process),
                 " did not share memory with this process in time");
  }
  void* words = nullptr;
  JAXMG_RETURN_IF_ERROR(MapHostSegment(file.get(), kWordBytes, &words));
  JAXMG_RETURN_IF_ERROR(source_.load()->Register(words, kWordBytes));
  found->their_words_ = static_cast<uint32_t*>(words);
  found->connected_ = true;
  *peer = std::move(found);
  return Status::Ok();
}

bool Segments::SharesWith(int process) {
  auto lock = monitor_.Lock();
  const auto found = peers_.find(process);
  return found != peers_.end() && found->second->their_words_ != nullptr;
}

Status MemoryPeer::AcquireWords(uint32_t count, uint32_t* first) {
  auto lock = Segments::Instance().monitor_.Lock();
  uint32_t run = 0;
  for (uint32_t word = 0; word < kWords; ++word) {
    run = taken_[word] ? 0 : run + 1;
    if (run < count) continue;
    *first = word + 1 - count;
    std::fill_n(taken_.begin() + *first, count, 1);
    return Status::Ok();
  }
  return Error(Code::kResourceExhausted, "too many concurrent calls with one other process");
}

void MemoryPeer::ReleaseWords(uint32_t first, uint32_t count) noexcept {
  auto lock = Segments::Instance().monitor_.Lock();
  std::fill_n(taken_.begin() + first, count, 0);
}

std::shared_ptr<Event> MemoryPeer::PeerEvent(const SharedCount& count) const {
  uint32_t* words = their_words_;
  if (words == nullptr || count.word >= kWords) return nullptr;
  return std::make_shared<SharedEvent>(words + count.word, count.count);
}

Status MemoryPeer::Map(const BlockLocation& location, Bytes2D* block) {
  std::lock_guard<std::mutex> mapping(mapping_);
  Segments& segments = Segments::Instance();
  MemorySource& source = *segments.source();
  MappedSegment* found = nullptr;
  std::vector<std::pair<char*, size_t>> forgotten;
  {
    auto lock = segments.monitor_.Lock();
    for (auto theirs = peer_segments_.begin(); theirs != peer_segments_.end();) {
      if (!theirs->second.forgotten) {
        ++theirs;
        continue;
      }
      if (theirs->second.data) forgotten.emplace_back(theirs->second.data, theirs->second.bytes);
      theirs = peer_segments_.erase(theirs);
    }
    const auto theirs = peer_segments_.find(location.segment);
    if (theirs != peer_segments_.end())
      found = &theirs->second;  // stays valid, because this function handles releases
  }
  for (const auto& [data, bytes] : forgotten) source.Unmap(data, bytes);
  if (found == nullptr) {
    return Error(Code::kInternal, "a block lies in a segment that was not announced");
  }
  if (found->data == nullptr) {
    void* data = nullptr;
    JAXMG_RETURN_IF_ERROR(source.Map(found->file.get(), found->bytes, &data));
    found->data = static_cast<char*>(data);
    found->file = Fd();
  }
  const auto offset = static_cast<size_t>(location.offset);
  if (location.offset < 0 || location.pitch < 0 || offset > found->bytes ||
      !Fits(*block, static_cast<size_t>(location.pitch), found->bytes - offset)) {
    return Error(Code::kInternal, "a block is outside of its segment");
  }
  block->data = found->data + offset;
  block->pitch = static_cast<size_t>(location.pitch);
  return Status::Ok();
}

// --- The hub's thread ---------------------------------------------------------------------------

bool Segments::OnSegment(int process, const FrameHeader& header, Fd file) {
  if (file.get() < 0 || header.value <= 0) return false;
  auto lock = monitor_.Lock();
  MemoryPeer& peer = *FindOrAddPeer(process);
  if (header.from == kWordsNumber) {
    if (peer.their_words_ != nullptr) return false;
    peer.words_file_ = std::move(file);
    monitor_.Notify();
    return true;
  }
  if (peer.peer_segments_.size() >= kMostSegments || peer.peer_segments_.count(header.from) > 0) {
    return false;
  }
  MemoryPeer::MappedSegment& theirs = peer.peer_segments_[header.from];
  theirs.file = std::move(file);
  theirs.bytes = static_cast<size_t>(header.value);
  return true;
}

bool Segments::OnForget(int process, const FrameHeader& header) {
  auto lock = monitor_.Lock();
  MemoryPeer& peer = *FindOrAddPeer(process);
  if (header.from == kWordsNumber) {
    peer.refused_ = true;
    monitor_.Notify();
    return true;
  }
  const auto theirs = peer.peer_segments_.find(header.from);
  if (theirs == peer.peer_segments_.end()) return false;
  theirs->second.forgotten = true;
  return true;
}

void Segments::Lose(int process) noexcept {
  {
    auto lock = monitor_.Lock();
    const auto found = peers_.find(process);
    if (found == peers_.end()) return;
    found->second->lost_ = true;
    monitor_.Notify();
  }
  ReleaseLost();
}

void Segments::ReleaseLost() noexcept {
  auto lock = monitor_.Lock();
  for (const auto& [process, peer] : peers_) {
    uint32_t* words = peer->their_words_;
    if (!peer->lost_ || words == nullptr) continue;
    for (uint32_t i = 0; i < kWords; ++i) {
      // Computed only once: the value is relative to the count at the time of the loss.
      if (peer->released_[i] == 0) {
        peer->released_[i] = (__atomic_load_n(words + i, __ATOMIC_RELAXED) + kFarAhead) | 1u;
      }
      __atomic_store_n(words + i, peer->released_[i], __ATOMIC_RELEASE);
    }
  }
}

}  // namespace jaxmg
