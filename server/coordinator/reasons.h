// Why an epoch changes, as every member of the job is told: the first few reasons and the
// number of the others. A thousand deaths at once must not make a message of a thousand
// sentences for each of those who live.
//
//   Reasons reasons;
//   reasons.Add("worker 3 (host:19): its connection broke");
//   reasons.Text();  // "worker 3 ...; worker 4 ...; worker 5 ...; and 993 others"
//
// Thread safety: none.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace syncline {

class Reasons {
 public:
  void Add(std::string reason);
  void Add(Reasons more);

  bool empty() const { return shown_.empty(); }
  std::string Text() const;

 private:
  std::vector<std::string> shown_;
  size_t others_ = 0;
};

}  // namespace syncline
