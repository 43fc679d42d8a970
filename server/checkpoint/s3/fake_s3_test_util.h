// An S3 server in this process, for tests. It answers the requests that S3Store makes,
// and refuses requests that are not signed correctly.
//
// Thread safety: any thread may call the methods. Hooks run on threads of the server.
#pragma once

#include <httplib.h>

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "server/checkpoint/s3/settings.h"
#include "server/checkpoint/s3/signature.h"

namespace syncline {

// Called for a request. `what` is "POST begin", "PUT part", "POST upload" (which
// completes it), "DELETE upload", "GET list", or for all other requests just the method.
using FakeS3Hook =
    std::function<bool(const std::string& what, httplib::Response& response)>;
struct FakeS3Hooks {
  FakeS3Hook before = {};  // true: the hook has answered, and nothing is done
  FakeS3Hook after = {};   // after the request was carried out; may change the answer
};

class FakeS3 {
 public:
  static constexpr char kBucket[] = "models";
  static constexpr char kKeyId[] = "AKIDEXAMPLE";
  static constexpr char kSecret[] = "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY";

  explicit FakeS3(FakeS3Hooks hooks = {}) : hooks_(std::move(hooks)) {
    const httplib::Server::Handler answer =
        [this](const httplib::Request& in, httplib::Response& out) { Answer(in, out); };
    server_.Get(".*", answer).Put(".*", answer).Post(".*", answer).Delete(".*", answer);
    server_.set_keep_alive_timeout(1);
    server_.set_tcp_nodelay(true);
    port_ = server_.bind_to_any_port("127.0.0.1");
    thread_ = std::thread([this] { server_.listen_after_bind(); });
    while (!server_.is_running()) std::this_thread::yield();
  }
  ~FakeS3() {
    server_.stop();
    thread_.join();
  }

  S3Settings Settings(const std::string& prefix = "night/7") const {
    const std::string endpoint = absl::StrCat("http://127.0.0.1:", port_);
    const std::map<std::string, std::string> variables = {
        {"AWS_ACCESS_KEY_ID", kKeyId},
        {"AWS_SECRET_ACCESS_KEY", kSecret},
        {"AWS_SESSION_TOKEN", "a+token/=="},
        {"AWS_ENDPOINT_URL", endpoint}};
    return *FindS3Settings(
        absl::StrCat("s3://", kBucket, "/", prefix), [&](const char* name) {
          const auto found = variables.find(name);
          return found == variables.end() ? nullptr : found->second.c_str();
        });
  }

  std::atomic<size_t> page = 1000;  // names in one page of a list
  std::atomic<bool> knows_if_none_match = true;
  std::atomic<bool> knows_ranges = true;

  std::vector<std::string> Asked() {
    absl::MutexLock lock(&mutex_);
    return asked_;
  }
  size_t Uploads() {
    absl::MutexLock lock(&mutex_);
    return uploads_.size();
  }
  std::vector<std::string> Keys() {
    absl::MutexLock lock(&mutex_);
    std::vector<std::string> keys;
    for (const auto& [key, object] : objects_) keys.push_back(key);
    return keys;
  }
  // Drops a part of all uploads, like a server that loses what it has accepted.
  void LosePart(int number) {
    absl::MutexLock lock(&mutex_);
    for (auto& [id, upload] : uploads_) upload.parts.erase(number);
  }

  static bool Refuse(httplib::Response& out, int status, const std::string& code) {
    out.status = status;
    out.set_content(absl::StrCat("<?xml version=\"1.0\"?>\n<Error><Code>", code,
                                 "</Code><Message>no &amp; no</Message></Error>"),
                    "application/xml");
    return true;
  }

 private:
  struct Object {
    std::string bytes = {};
    std::string mark = {};
  };
  struct Upload {
    std::string key = {};
    std::string mark = {};
    std::map<int, std::string> parts = {};
  };
  using Query = std::map<std::string, std::string>;

  static std::string Decoded(absl::string_view text) {
    std::string decoded;
    for (size_t i = 0; i < text.size(); ++i) {
      if (text[i] != '%') {
        decoded += text[i];
        continue;
      }
      decoded += absl::HexStringToBytes(text.substr(i + 1, 2));
      i += 2;
    }
    return decoded;
  }

  // Checks the signature of the request exactly as it was received.
  static bool IsSigned(const httplib::Request& in) {
    const std::vector<std::string> target =
        absl::StrSplit(in.target, absl::MaxSplits('?', 1));
    SignedRequest request = {
        .method = in.method,
        .path = target[0],
        .query = target.size() > 1 ? target[1] : "",
        .payload_sha256 =
            Sha256Hex(std::as_bytes(std::span(in.body.data(), in.body.size())))};
    const std::string given = in.get_header_value("Authorization");
    const std::vector<std::string> fields = absl::StrSplit(given, ',');
    if (fields.size() != 3) return false;
    const std::string names = fields[1].substr(fields[1].find('=') + 1);
    for (const std::string& name : std::vector<std::string>(absl::StrSplit(names, ';'))) {
      request.headers[name] = in.get_header_value(name);
    }
    absl::Time time;
    std::string why;
    if (!absl::ParseTime("%E4Y%m%dT%H%M%SZ", request.headers["x-amz-date"], &time,
                         &why) ||
        request.headers["x-amz-content-sha256"] != request.payload_sha256 ||
        request.headers["x-amz-security-token"] != "a+token/==" ||
        request.headers.count("host") == 0) {
      return false;
    }
    return given == Authorization(request, {.region = "us-east-1"},
                                  {.key_id = kKeyId, .secret = kSecret}, time);
  }

  static std::string WhatIs(const httplib::Request& in, const Query& query) {
    const char* detail = query.count("uploads")      ? " begin"
                         : query.count("partNumber") ? " part"
                         : query.count("uploadId")   ? " upload"
                         : query.count("list-type")  ? " list"
                                                     : "";
    return absl::StrCat(in.method, detail);
  }

  void Answer(const httplib::Request& in, httplib::Response& out) {
    const std::vector<std::string> target =
        absl::StrSplit(in.target, absl::MaxSplits('?', 1));
    const std::string path = Decoded(target[0]);
    Query query;
    for (const std::string& one : std::vector<std::string>(absl::StrSplit(
             target.size() > 1 ? target[1] : "", '&', absl::SkipEmpty()))) {
      const std::vector<std::string> pair = absl::StrSplit(one, absl::MaxSplits('=', 1));
      query[Decoded(pair[0])] = Decoded(pair[1]);
    }
    const std::string what = WhatIs(in, query);
    {
      absl::MutexLock lock(&mutex_);
      asked_.push_back(what);
    }
    if (hooks_.before && hooks_.before(what, out)) return;
    if (!IsSigned(in)) {
      Refuse(out, 403, "SignatureDoesNotMatch");
      return;
    }
    const std::string root = absl::StrCat("/", kBucket, "/");
    if (!absl::StartsWith(path, root)) {
      Refuse(out, 404, "NoSuchBucket");
      return;
    }
    CarryOut(in, path.substr(root.size()), query, out);
    if (hooks_.after) (void)hooks_.after(what, out);
  }

  void CarryOut(const httplib::Request& in, const std::string& key, const Query& query,
                httplib::Response& out) {
    absl::MutexLock lock(&mutex_);
    if (query.count("list-type") > 0) return List(query, out);
    if (query.count("uploads") + query.count("uploadId") > 0) {
      return OfUpload(in, key, query, out);
    }
    OfObject(in, key, out);
  }

  void List(const Query& query, httplib::Response& out)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    const std::string prefix = query.at("prefix");
    const auto token = query.find("continuation-token");
    std::string after = token == query.end() ? "" : token->second;
    std::string xml =
        "<ListBucketResult xmlns=\"http://s3\"><EncodingType>url</EncodingType>";
    size_t count = 0;
    bool is_cut = false;
    for (const auto& [key, object] : objects_) {
      if (!absl::StartsWith(key, prefix) || key <= after) continue;
      if (count++ == page) {
        is_cut = true;
        break;
      }
      absl::StrAppend(&xml, "<Contents><Key>", UriEncode(key),
                      "</Key><LastModified>2026-01-02T03:04:05.000Z</LastModified><Size>",
                      object.bytes.size(), "</Size></Contents>");
      last_ = key;
    }
    absl::StrAppend(&xml, "<IsTruncated>", is_cut ? "true" : "false", "</IsTruncated>");
    if (is_cut) {
      absl::StrAppend(&xml, "<NextContinuationToken>", last_, "</NextContinuationToken>");
    }
    out.set_content(xml + "</ListBucketResult>", "application/xml");
  }

  void OfUpload(const httplib::Request& in, const std::string& key, const Query& query,
                httplib::Response& out) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (query.count("uploads") > 0) {
      const std::string id = absl::StrCat("id/+", ++last_upload_);
      uploads_[id] = {.key = key,
                      .mark = in.get_header_value("x-amz-meta-syncline-mark")};
      out.set_content(absl::StrCat("<InitiateMultipartUploadResult><UploadId>", id,
                                   "</UploadId></InitiateMultipartUploadResult>"),
                      "application/xml");
      return;
    }
    const auto upload = uploads_.find(query.at("uploadId"));
    if (upload == uploads_.end() || upload->second.key != key) {
      Refuse(out, 404, "NoSuchUpload");
      return;
    }
    if (in.method == "PUT") {
      int number = 0;
      (void)absl::SimpleAtoi(query.at("partNumber"), &number);
      upload->second.parts[number] = in.body;
      out.set_header("ETag", absl::StrCat("\"part-", number, "\""));
      return;
    }
    if (in.method == "POST") {
      std::string bytes;
      for (int number = 1;
           absl::StrContains(in.body, absl::StrCat("part-", number, "\"")); ++number) {
        if (upload->second.parts.count(number) == 0) {
          Refuse(out, 400, "InvalidPart");
          return;
        }
        bytes += upload->second.parts[number];
      }
      objects_[key] = {.bytes = bytes, .mark = upload->second.mark};
      out.set_content("<CompleteMultipartUploadResult/>", "application/xml");
    } else {
      out.status = 204;
    }
    uploads_.erase(upload);
  }

  void OfObject(const httplib::Request& in, const std::string& key,
                httplib::Response& out) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    const auto object = objects_.find(key);
    if (in.method == "PUT") {
      const bool is_conditional = in.get_header_value("if-none-match") == "*";
      if (is_conditional && knows_if_none_match && object != objects_.end()) {
        Refuse(out, 412, "PreconditionFailed");
        return;
      }
      objects_[key] = {.bytes = in.body,
                       .mark = in.get_header_value("x-amz-meta-syncline-mark")};
      return;
    }
    if (in.method == "DELETE") {
      objects_.erase(key);
      out.status = 204;
      return;
    }
    if (object == objects_.end()) {
      Refuse(out, 404, "NoSuchKey");
      return;
    }
    out.set_header("x-amz-meta-syncline-mark", object->second.mark);
    const std::string& bytes = object->second.bytes;
    // httplib would answer ranges beyond the end by itself, but not as S3 does.
    httplib::Ranges& ranges = const_cast<httplib::Request&>(in).ranges;
    if (!knows_ranges) ranges.clear();
    if (!ranges.empty()) {
      const auto end = static_cast<ssize_t>(bytes.size());
      if (ranges[0].first >= end) {
        ranges.clear();
        Refuse(out, 416, "InvalidRange");
        return;
      }
      ranges[0].second = std::min(ranges[0].second, end - 1);
    }
    out.set_content(bytes, "application/octet-stream");
  }

  const FakeS3Hooks hooks_;
  httplib::Server server_;
  int port_ = 0;
  absl::Mutex mutex_;
  std::map<std::string, Object> objects_ ABSL_GUARDED_BY(mutex_);
  std::map<std::string, Upload> uploads_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::string> asked_ ABSL_GUARDED_BY(mutex_);
  std::string last_ ABSL_GUARDED_BY(mutex_);
  int last_upload_ ABSL_GUARDED_BY(mutex_) = 0;
  std::thread thread_;
};

}  // namespace syncline
