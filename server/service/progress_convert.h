// Converts what heartbeats report: the progress of a server's jobs, and a worker's
// compression statistics.
#pragma once

#include <cstdint>
#include <vector>

#include "proto/coordinator.pb.h"
#include "server/coordinator/coordinator.h"

namespace syncline {

void ProgressToProto(const std::vector<JobProgress>& jobs, v1::Heartbeat& beat);
// Leaves out jobs with more members than a job can have.
std::vector<JobProgress> ProgressFromProto(const v1::Heartbeat& beat);

v1::RecordProgress ToProto(const RecordProgress& records);

// Returns a figure that a member has measured. Input from members is not trusted: what is
// negative or not finite becomes 0.
double FigureOf(double value);
LinkFigures FromProto(const v1::LinkFigures& in);
v1::LinkFigures ToProto(const LinkFigures& links);

CompressionFigures FromProto(const v1::CompressionFigures& in);
v1::CompressionFigures ToProto(const CompressionFigures& figures);

}  // namespace syncline
