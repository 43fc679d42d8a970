#include "server/journal/segment.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "comm/base/crc32c.h"
#include "comm/base/status.h"
#include "server/journal/bytes.h"
#include "server/journal/folder.h"
#include "server/journal/record_bytes.h"

namespace syncline {
namespace {

constexpr std::string_view kMagic = "SYNCJRNL";
constexpr uint32_t kRecordMark = 0x43455253;  // "SREC"
constexpr size_t kHeadPrefix = 8 + 4 + 4 + 4;
constexpr size_t kFramePrefix = 4 + 4 + 8 + 8 + 4;
// Segments are closed at a much smaller size, so this program wrote no larger file.
constexpr off_t kMaxSegmentBytes = off_t{1} << 30;

absl::Status Failed(const char* what, const std::string& path, int error) {
  const std::string where =
      absl::StrCat("cannot ", what, " ", path, ": ", std::strerror(error));
  switch (error) {
    case ENOENT:
      return absl::NotFoundError(where);
    case EEXIST:
      return absl::AlreadyExistsError(where);
    case ENOSPC:
    case EDQUOT:
      return absl::ResourceExhaustedError(absl::StrCat(where, "; free space there"));
    case EACCES:
    case EPERM:
    case EROFS:
      return absl::PermissionDeniedError(absl::StrCat(where, "; check its permissions"));
    default:
      return absl::InternalError(where);
  }
}

std::vector<std::byte> AboutBytes(const SegmentHead& head) {
  ByteWriter out;
  out.PutString(head.job);
  out.PutString(head.specification);
  out.Put<int64_t>(head.created_unix_ms);
  out.Put<uint32_t>(head.shard);
  out.Put<uint64_t>(head.first_sequence);
  out.Put<uint32_t>(head.checkpoint_run);
  out.Put<uint32_t>(head.began_from ? head.began_from->run : 0);
  out.Put<uint64_t>(head.began_from ? head.began_from->step : 0);
  out.Put(static_cast<uint32_t>(head.blocks.size()));
  for (const uint32_t block : head.blocks) out.Put<uint32_t>(block);
  return out.bytes();
}

std::optional<SegmentHead> AboutFrom(ByteView bytes) {
  ByteReader in(bytes);
  SegmentHead head;
  head.job = in.TakeString();
  head.specification = in.TakeString();
  head.created_unix_ms = in.Take<int64_t>();
  head.shard = in.Take<uint32_t>();
  head.first_sequence = in.Take<uint64_t>();
  head.checkpoint_run = in.Take<uint32_t>();
  const auto run = in.Take<uint32_t>();
  const auto step = in.Take<uint64_t>();
  if (run > 0) head.began_from = CheckpointName{run, step};
  const auto blocks = in.Take<uint32_t>();
  if (!in.CanHold(blocks, sizeof(uint32_t))) return std::nullopt;
  for (uint32_t i = 0; i < blocks; ++i) head.blocks.push_back(in.Take<uint32_t>());
  if (!in.is_at_end()) return std::nullopt;
  return head;
}

}  // namespace

std::string SegmentName(uint32_t shard, uint32_t number, SegmentKind kind,
                        uint32_t generation) {
  const char* const begins = kind == SegmentKind::kBegun  ? "-begun"
                             : kind == SegmentKind::kAnew ? "-anew"
                                                          : "";
  const std::string of = generation == 0 ? "" : absl::StrFormat("g%d-", generation);
  return absl::StrFormat("shard-%05d-%s%06d%s.journal", shard, of, number, begins);
}

std::optional<SegmentPlace> ParseSegmentName(const std::string& name) {
  SegmentPlace place;
  const bool is_one =
      std::sscanf(name.c_str(), "shard-%u-%u", &place.shard, &place.number) == 2 ||
      std::sscanf(name.c_str(), "shard-%u-g%u-%u", &place.shard, &place.generation,
                  &place.number) == 3;
  if (!is_one) return std::nullopt;
  for (const SegmentKind kind :
       {SegmentKind::kGoesOn, SegmentKind::kBegun, SegmentKind::kAnew}) {
    place.kind = kind;
    if (SegmentName(place.shard, place.number, kind, place.generation) == name) {
      return place;
    }
  }
  return std::nullopt;
}

bool BeginsAnew(const std::string& path) {
  const auto place = ParseSegmentName(path.substr(path.rfind('/') + 1));
  return place && place->kind == SegmentKind::kAnew;
}

// ---- Writing ----

absl::StatusOr<std::unique_ptr<SegmentWriter>> SegmentWriter::Create(
    const std::string& path, const SegmentHead& head) {
  UniqueFd fd(open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666));
  if (!fd.valid()) return Failed("create", path, errno);
  std::unique_ptr<SegmentWriter> writer(new SegmentWriter(path, std::move(fd)));
  const std::vector<std::byte> about = AboutBytes(head);
  ByteWriter prefix;
  for (const char c : kMagic) prefix.Put<uint8_t>(static_cast<uint8_t>(c));
  prefix.Put<uint32_t>(kJournalFormat);
  prefix.Put(static_cast<uint32_t>(about.size()));
  prefix.Put<uint32_t>(Crc32c(about, Crc32c(prefix.bytes())));
  SYNCLINE_RETURN_IF_ERROR(writer->Write(prefix.bytes()));
  SYNCLINE_RETURN_IF_ERROR(writer->Write(about));
  SYNCLINE_RETURN_IF_ERROR(writer->Sync());
  writer->next_ = writer->group_ = head.first_sequence;
  return writer;
}

absl::Status SegmentWriter::Write(ByteView bytes) {
  while (!bytes.empty()) {
    const ssize_t written = write(fd_.get(), bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) {
      return Failed(
          absl::StrCat("write ", bytes.size(), " bytes behind the first ", bytes_, " of")
              .c_str(),
          path_, errno);
    }
    bytes_ += static_cast<uint64_t>(written);
    bytes = bytes.subspan(static_cast<size_t>(written));
  }
  return absl::OkStatus();
}

absl::Status SegmentWriter::Append(const ShardRecord& record) {
  const RecordBytes written = WriteRecord(record);
  const ByteView payload(written.payload.data, written.payload.size);
  ByteWriter frame;
  frame.Put<uint32_t>(kRecordMark);
  frame.Put(static_cast<uint32_t>(written.head.size() + payload.size()));
  frame.Put<uint64_t>(next_);
  frame.Put<uint64_t>(group_);
  frame.Put<uint32_t>(
      Crc32c(payload, Crc32c(written.head, Crc32c(std::span(frame.bytes())))));
  SYNCLINE_RETURN_IF_ERROR(Write(frame.bytes()));
  SYNCLINE_RETURN_IF_ERROR(Write(written.head));
  SYNCLINE_RETURN_IF_ERROR(Write(payload));
  ++next_;
  return absl::OkStatus();
}

absl::Status SegmentWriter::Sync() {
  if (fdatasync(fd_.get()) != 0) {
    const int error = errno;
    // If the cut fails as well, the file has a torn tail: a group that was not reported
    // as durable.
    if (ftruncate(fd_.get(), static_cast<off_t>(synced_bytes_)) != 0) errno = error;
    return FailedSync(path_, error);
  }
  group_ = next_;
  synced_bytes_ = bytes_;
  return absl::OkStatus();
}

// ---- Reading ----

absl::StatusOr<std::unique_ptr<SegmentReader>> SegmentReader::Open(
    const std::string& path, Place place) {
  const UniqueFd fd(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  struct stat about = {};
  if (!fd.valid() || fstat(fd.get(), &about) != 0) return Failed("read", path, errno);
  if (about.st_size > kMaxSegmentBytes) {
    return absl::DataLossError(absl::StrCat(
        path, " has ", about.st_size, " bytes, more than any segment of a journal"));
  }
  std::vector<std::byte> bytes(static_cast<size_t>(about.st_size));
  size_t done = 0;
  while (done < bytes.size()) {
    const ssize_t got = read(fd.get(), bytes.data() + done, bytes.size() - done);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return Failed("read", path, errno);
    if (got == 0) break;
    done += static_cast<size_t>(got);
  }
  bytes.resize(done);
  std::unique_ptr<SegmentReader> reader(new SegmentReader(path, place, std::move(bytes)));
  SYNCLINE_RETURN_IF_ERROR(reader->ReadHead());
  return reader;
}

absl::Status SegmentReader::Damaged(size_t offset, const std::string& why) const {
  return absl::DataLossError(
      absl::StrCat(path_, " is damaged at byte ", offset, ": ", why));
}

absl::Status SegmentReader::ReadHead() {
  ByteReader in(bytes_);
  const ByteView magic = in.TakeBytes(kMagic.size());
  const auto format = in.Take<uint32_t>();
  const auto size = in.Take<uint32_t>();
  const auto crc = in.Take<uint32_t>();
  const ByteView about = in.TakeBytes(size);
  const bool is_ours =
      in.ok() && std::memcmp(magic.data(), kMagic.data(), kMagic.size()) == 0;
  if (is_ours && format > kJournalFormat) {
    return absl::FailedPreconditionError(
        absl::StrCat(path_, " is of format ", format, ", but this program reads ",
                     kJournalFormat, " at most; use a newer Syncline"));
  }
  if (is_ours && Crc32c(about, Crc32c(ByteView(bytes_).first(kHeadPrefix - 4))) == crc) {
    head_ = AboutFrom(about);
  }
  if (head_) {
    head_->format = format;
    offset_ = kHeadPrefix + size;
    next_ = head_->first_sequence;
    return absl::OkStatus();
  }
  // Records are written only once the head is on the disk, and their groups are above 0.
  if (place_ == Place::kFollowed || LaterGroupFollows(0)) {
    return Damaged(0, "it does not begin with the head of a journal");
  }
  torn_bytes_ = bytes_.size();
  offset_ = bytes_.size();
  return absl::OkStatus();
}

std::optional<SegmentReader::Frame> SegmentReader::FrameAt(size_t offset) const {
  const ByteView bytes = ByteView(bytes_).subspan(offset);
  ByteReader in(bytes);
  const auto mark = in.Take<uint32_t>();
  const auto size = in.Take<uint32_t>();
  Frame frame = {.sequence = in.Take<uint64_t>()};
  frame.group = in.Take<uint64_t>();
  const auto crc = in.Take<uint32_t>();
  frame.record = in.TakeBytes(size);
  if (!in.ok() || mark != kRecordMark) return std::nullopt;
  frame.bytes = kFramePrefix + size;
  if (Crc32c(frame.record, Crc32c(bytes.first(kFramePrefix - 4))) != crc) {
    return std::nullopt;
  }
  return frame;
}

// Returns whether a whole record follows whose group began after the bad record was on
// the disk.
bool SegmentReader::LaterGroupFollows(size_t offset) const {
  for (size_t at = offset; at + kFramePrefix <= bytes_.size(); ++at) {
    uint32_t mark = 0;
    std::memcpy(&mark, bytes_.data() + at, sizeof(mark));
    if (mark != kRecordMark) continue;
    const auto frame = FrameAt(at);
    if (frame && frame->group > next_) return true;
  }
  return false;
}

absl::StatusOr<std::optional<ShardRecord>> SegmentReader::Next() {
  if (offset_ == bytes_.size()) return std::nullopt;
  const auto frame = FrameAt(offset_);
  if (!frame || frame->sequence != next_) {
    if (place_ == Place::kFollowed || LaterGroupFollows(offset_)) {
      return Damaged(
          offset_,
          absl::StrCat(
              "record ", next_,
              " is missing or damaged; restore the file, or replay to an earlier step"));
    }
    torn_bytes_ = bytes_.size() - offset_;
    offset_ = bytes_.size();
    return std::nullopt;
  }
  auto record = ReadRecord(frame->record);
  if (!record.ok()) return Damaged(offset_, std::string(record.status().message()));
  offset_ += frame->bytes;
  ++next_;
  return std::optional(*std::move(record));
}

}  // namespace syncline
