#include "server/coordinator/preparation.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "comm/base/status.h"

namespace syncline {
namespace {

absl::StatusOr<std::shared_ptr<const DeclaredJob>> Read(const Declaration& declaration,
                                                        const DeclarationReader& reader) {
  SYNCLINE_ASSIGN_OR_RETURN(JobSpec spec, reader.parse(*declaration.bytes));
  return MakeDeclaredJob(declaration, std::move(spec));
}

DeclarationRead Do(const ReadDeclaration& order, const DeclarationReader& reader) {
  const Declaration& announced = order.announced;
  DeclarationRead read = {
      .from = order.from, .digest = announced.digest, .bytes = announced.bytes->size()};
  if (reader.digest(*announced.bytes) != announced.digest) {
    read.delivery = absl::InvalidArgumentError(
        absl::StrCat("the declaration that was sent (", read.bytes,
                     " bytes) does not have the digest that was announced"));
    read.job = read.delivery;
    return read;
  }
  read.job = Read(announced, reader);
  return read;
}

JobsCompared Do(const CompareJobs& order, const DeclarationReader&) {
  return {.ours = order.ours->declaration.digest,
          .theirs = order.theirs->declaration.digest,
          .same = CheckSameJob(order.ours->spec, order.theirs->spec)};
}

JobPlaced Do(const PlaceBlocksOf& order, const DeclarationReader&) {
  JobPlaced placed = {.digest = order.job->declaration.digest, .shards = order.shards};
  absl::StatusOr<JobPlacement> placement = PlaceJob(order.job->spec, order.shards);
  if (placement.ok()) {
    placed.placement = std::make_shared<const JobPlacement>(*std::move(placement));
  } else {
    placed.placement = placement.status();
  }
  return placed;
}

}  // namespace

Prepared CarryOut(const Preparation& order, const DeclarationReader& reader) {
  return std::visit([&](const auto& what) -> Prepared { return Do(what, reader); },
                    order);
}

}  // namespace syncline
