// Turns S3's error answers into messages that say what to do.
#include <string>

#include "absl/strings/str_cat.h"
#include "comm/base/printable.h"
#include "server/checkpoint/s3/client.h"

namespace syncline {
namespace {

absl::StatusCode CodeOf(int status, const std::string& code) {
  if (code == "XMinioStorageFull" || code == "QuotaExceeded" || status == 507) {
    return absl::StatusCode::kResourceExhausted;
  }
  switch (status) {
    case 301:
    case 307:
    case 400:
      return absl::StatusCode::kFailedPrecondition;
    case 401:
    case 403:
      return absl::StatusCode::kPermissionDenied;
    case 404:
      return absl::StatusCode::kNotFound;
    case 409:
      return absl::StatusCode::kAborted;
    case 412:
      return absl::StatusCode::kAlreadyExists;
    case 416:
      return absl::StatusCode::kDataLoss;
    case 408:
    case 429:
      return absl::StatusCode::kUnavailable;
    default:
      return status >= 500 && status != 501 ? absl::StatusCode::kUnavailable
                                            : absl::StatusCode::kInternal;
  }
}

std::string Advice(const S3Settings& settings, const S3Answer& answer,
                   const S3ErrorBody& error) {
  std::string region = answer.Header("x-amz-bucket-region");
  if (region.empty()) region = error.region;
  if (!region.empty() && region != settings.region) {
    return absl::StrCat("the bucket is in region ", Printable(region),
                        ", but requests are for ", settings.region,
                        "; set AWS_REGION=", Printable(region));
  }
  if (error.code == "RequestTimeTooSkewed") return "set the clock of this host";
  // The message must not contain the key: errors appear in logs, in the status and in
  // events, which many people can read.
  if (error.code == "SignatureDoesNotMatch") {
    return "AWS_SECRET_ACCESS_KEY is not that of AWS_ACCESS_KEY_ID, or a proxy changes "
           "requests";
  }
  if (error.code == "InvalidAccessKeyId") {
    return "the server does not know the key in AWS_ACCESS_KEY_ID";
  }
  if (error.code == "ExpiredToken" || error.code == "InvalidToken") {
    return "the temporary credentials in AWS_SESSION_TOKEN have expired; start with new "
           "ones";
  }
  if (error.code == "NoSuchBucket") {
    return absl::StrCat("make the bucket ", settings.bucket, ", or name another");
  }
  if (error.code == "XMinioStorageFull" || error.code == "QuotaExceeded" ||
      answer.status == 507) {
    return "free space there, or keep fewer checkpoints";
  }
  switch (answer.status) {
    case 301:
    case 307:
      return "set AWS_REGION to the region of the bucket";
    case 401:
    case 403:
      return "the key in AWS_ACCESS_KEY_ID may not do that: it needs s3:ListBucket of "
             "the "
             "bucket, and s3:GetObject, s3:PutObject, s3:DeleteObject and "
             "s3:AbortMultipartUpload of what is in it";
    default:
      return "";
  }
}

}  // namespace

std::string S3Client::NameOf(const S3Call& call) const {
  std::string name = absl::StrCat("s3://", settings_.bucket);
  if (!call.key.empty()) absl::StrAppend(&name, "/", Printable(call.key));
  return absl::StrCat(call.method, " ", name, " at ", settings_.origin);
}

absl::Status S3Client::ErrorOf(const S3Call& call, const S3Answer& answer) const {
  const S3ErrorBody error = ParseErrorBody(answer.body);
  std::string text = absl::StrCat(NameOf(call), ": HTTP ", answer.status);
  if (!error.code.empty()) absl::StrAppend(&text, " ", Printable(error.code));
  if (!error.message.empty()) absl::StrAppend(&text, " (", Printable(error.message), ")");
  const std::string advice = Advice(settings_, answer, error);
  if (!advice.empty()) absl::StrAppend(&text, "; ", advice);
  if (answer.attempts > 1) absl::StrAppend(&text, "; asked ", answer.attempts, " times");
  return {CodeOf(answer.status, error.code), text};
}

}  // namespace syncline
