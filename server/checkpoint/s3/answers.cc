#include "server/checkpoint/s3/answers.h"

#include <pugixml.hpp>
#include <sstream>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "comm/base/printable.h"

namespace syncline {
namespace {

absl::Status NoAnswerOfS3(const std::string& xml) {
  return absl::DataLossError(absl::StrCat("the answer does not come from S3: '",
                                          Printable(xml), "'; check the endpoint"));
}

pugi::xml_node RootOf(pugi::xml_document& document, const std::string& xml) {
  const bool parsed = document.load_buffer(xml.data(), xml.size(), pugi::parse_default,
                                           pugi::encoding_utf8);
  return parsed ? document.document_element() : pugi::xml_node();
}

// Decodes names in an answer with encoding-type=url.
std::string UrlDecode(const std::string& text) {
  std::string decoded;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '%' && i + 2 < text.size() &&
        absl::ascii_isxdigit(static_cast<unsigned char>(text[i + 1])) &&
        absl::ascii_isxdigit(static_cast<unsigned char>(text[i + 2]))) {
      decoded += absl::HexStringToBytes(text.substr(i + 1, 2));
      i += 2;
    } else {
      decoded += text[i] == '+' ? ' ' : text[i];
    }
  }
  return decoded;
}

}  // namespace

absl::StatusOr<S3ListPage> ParseListPage(const std::string& xml) {
  pugi::xml_document document;
  const pugi::xml_node root = RootOf(document, xml);
  if (std::string(root.name()) != "ListBucketResult") return NoAnswerOfS3(xml);
  // Servers that do not know the parameter send names unencoded.
  const bool is_encoded = std::string(root.child_value("EncodingType")) == "url";
  S3ListPage page;
  for (const pugi::xml_node object : root.children("Contents")) {
    Blob blob = {.name = object.child_value("Key")};
    if (is_encoded) blob.name = UrlDecode(blob.name);
    std::string why;
    if (!absl::SimpleAtoi(object.child_value("Size"), &blob.bytes) ||
        !absl::ParseTime(absl::RFC3339_full, object.child_value("LastModified"),
                         &blob.written, &why)) {
      return NoAnswerOfS3(xml);
    }
    page.objects.push_back(std::move(blob));
  }
  if (std::string(root.child_value("IsTruncated")) == "true") {
    page.next = root.child_value("NextContinuationToken");
    if (page.next.empty()) return NoAnswerOfS3(xml);
  }
  return page;
}

absl::StatusOr<std::string> ParseUploadId(const std::string& xml) {
  pugi::xml_document document;
  const pugi::xml_node root = RootOf(document, xml);
  std::string id = root.child_value("UploadId");
  if (id.empty()) return NoAnswerOfS3(xml);
  return id;
}

bool IsUploadComplete(const std::string& xml) {
  pugi::xml_document document;
  const pugi::xml_node root = RootOf(document, xml);
  return std::string(root.name()) == "CompleteMultipartUploadResult";
}

S3ErrorBody ParseErrorBody(const std::string& xml) {
  pugi::xml_document document;
  const pugi::xml_node root = RootOf(document, xml);
  if (std::string(root.name()) != "Error") return {};
  return {.code = root.child_value("Code"),
          .message = root.child_value("Message"),
          .region = root.child_value("Region")};
}

std::string CompleteUploadXml(const std::vector<std::string>& etags) {
  pugi::xml_document document;
  pugi::xml_node root = document.append_child("CompleteMultipartUpload");
  for (size_t i = 0; i < etags.size(); ++i) {
    pugi::xml_node part = root.append_child("Part");
    part.append_child("PartNumber").text().set(absl::StrCat(i + 1).c_str());
    part.append_child("ETag").text().set(etags[i].c_str());
  }
  std::ostringstream out;
  document.save(out, "", pugi::format_raw | pugi::format_no_declaration);
  return out.str();
}

}  // namespace syncline
